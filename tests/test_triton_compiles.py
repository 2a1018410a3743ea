"""The Triton kernels compile for a real GPU even where there is none: the interpreter forgives more than a compiler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenphormer.walks import triton_kernel as kernels

for offset in ("i32", "i64"):
    for weighted in (True, False):
        common = {"indptr": f"*{offset}", "indices": "*i32", "running": "*i64" if weighted else "*i32", "nodes": "*i64"}
        common |= {"out": "*i32", "total": "i32", "num_walks": "i32", "length": "i32", "base": "i64"}
        constants = {"WEIGHTED": weighted, "EVERY": weighted, "COLUMNS": 8 if weighted else 0, "BLOCK": 32}
        work = [(kernels._uniform, common, constants), (kernels._non_backtracking, common, constants)]
        for backtracking in (True, False):
            work.append((kernels._jump, common | {"radius": "i32"}, constants | {"BACKTRACKING": backtracking}))
        for kernel, signature, fixed in work:
            signature = signature | dict.fromkeys(fixed, "constexpr")
            source = ASTSource(kernel, {n: signature[n] for n in kernel.arg_names}, constexprs=fixed)
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
            assert "cubin" in compiled.asm
print("compiled")
"""

MODEL = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenphormer import model_kernels as kernels

flags = {"ADD", "NORM", "GELU", "BACKWARD"}
single = {"weight", "bias", "means", "scales", "d_weight", "d_bias"}
whole = {"rows", "width", "count"}
for kernel in (kernels._add_norm, kernels._add_norm_backward, kernels._gelu_dropout):
    for value in (True, False):
        fixed = {n: value for n in kernel.arg_names if n in flags} | {"BLOCK": 512}
        kinds = {n: "*fp32" if n in single else "i32" if n in whole else "*bf16" for n in kernel.arg_names}
        kinds |= {n: "fp32" for n in ("eps", "boost") if n in kinds} | {"threshold": "i64", "seed": "*i32"}
        kinds |= dict.fromkeys(fixed, "constexpr")
        source = ASTSource(kernel, {n: kinds[n] for n in kernel.arg_names}, constexprs=fixed)
        assert "cubin" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
print("compiled")
"""

TOKENS = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenphormer.tokens import csr_kernel

for index in ("*i32", "*i64"):
    for number in ("*fp32", "*bf16"):
        kinds = {"crow": index, "column": index, "value": number, "dense": number, "result": number, "width": "i32"}
        source = ASTSource(csr_kernel._rows_times_dense, kinds | {"BLOCK": "constexpr"}, constexprs={"BLOCK": 64})
        assert "cubin" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
print("compiled")
"""

HOPS = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenphormer.tokens import hop_kernel

for number in ("*fp16", "*fp32"):
    for scaled in (True, False):
        flags = {"LEFT": scaled, "RIGHT": scaled, "OWN": scaled}
        kinds = {"indptr": "*i64", "indices": "*i32", "left": "*fp32", "right": "*fp32", "x": number, "out": number}
        fixed = flags | {"NEIGHBOURS": hop_kernel.NEIGHBOURS, "BLOCK": 128}
        kinds |= {"width": "i32"} | dict.fromkeys(fixed, "constexpr")
        source = ASTSource(hop_kernel._hop, {n: kinds[n] for n in hop_kernel._hop.arg_names}, constexprs=fixed)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
        assert "cubin" in compiled.asm
print("compiled")
"""


@pytest.mark.parametrize("code", [CODE, MODEL, TOKENS, HOPS], ids=["walks", "model", "tokens", "hops"])
def test_kernels_compile_for_hopper(code: str) -> None:
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compiled" in done.stdout
