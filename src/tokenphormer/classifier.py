"""`TokenphormerClassifier`: the scikit-learn habits for a graph: fit, predict, predict_proba, score, save, load.

A graph stands where scikit-learn has X, a split where it has y. A plain table (X, y) is taken as a graph without
edges.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from tokenphormer.errors import InputError
from tokenphormer.explain import Explainer, Explanation, MethodName
from tokenphormer.graph import Graph, Split, make_split
from tokenphormer.graph.splits import stratified_split
from tokenphormer.sgpm.pretrain_run import default_settings, find_or_pretrain
from tokenphormer.sgpm.pretrained import SGPM_FILE, PretrainedSGPM
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.tokens.source import projects_whole
from tokenphormer.training.fit import Fitted, fit_tokenphormer
from tokenphormer.training.loop import predict
from tokenphormer.training.presets import config_for, protocol_for
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import MOST_NODES, TokenphormerMethod, as_taken
from tokenphormer.walks.sampling import check_device, choose_device

WEIGHTS_FILE = "model.safetensors"
RUN_FILE = "run.json"
"""What the folder of a finished run has."""
_NO_EDGES = np.zeros((2, 0), np.int64)
_NO_SETTINGS: dict[str, Any] = {"device": "auto", "random_state": None, "sgpm": None}
_DEFAULTS: dict[str, Any] = Config().__dict__ | _NO_SETTINGS
_ONE_AT_A_TIME = Lock()
"""Held while a model is trained, or made for a prediction: all threads draw from the same random numbers of torch."""


class TokenphormerClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Classify the nodes of a graph. Parameters are the settings of `tokenphormer.training.Config`, and:

    device: "auto", "cpu" or "cuda"; random_state: the seed, if given, in place of `seed`; sgpm: for an SGPM-token, a
    folder of `tokenphormer pretrain`, a `PretrainedSGPM`, or "auto": pre-trained if there is none for the graph yet.

    >>> from tokenphormer import load_graph, make_split
    >>> graph = load_graph("debian")
    >>> clf = TokenphormerClassifier(hidden_channels=16, num_walks=2, max_epochs=2, device="cpu")
    >>> clf.fit(graph, make_split(graph)).predict(nodes=[0, 1]).shape
    (2,)
    """

    def __init__(self, **params: Any) -> None:
        for name, default in _DEFAULTS.items():
            setattr(self, name, params.pop(name, default))
        if params:
            unknown = next(iter(params))
            near = difflib.get_close_matches(unknown, _DEFAULTS, n=3)
            offer = f"; nearest: {', '.join(near)}" if near else ""
            raise TypeError(f"TokenphormerClassifier has no parameter {unknown!r}{offer}")

    @classmethod
    def for_graph(cls, graph: Graph, split: Split | None = None, **params: Any) -> TokenphormerClassifier:
        """One with the settings that `tokenphormer train` takes for a graph on the device; `params` change them.

        They go by the size of the graph, its features and the classes of the training nodes; without a split, of the
        one that `fit` would make.

        >>> from tokenphormer import load_graph
        >>> TokenphormerClassifier.for_graph(load_graph("debian"), device="cpu", max_epochs=9).num_hops
        4
        """
        asked = cls(**params)
        _refuse_other(graph)
        if not isinstance(graph, Graph):
            raise InputError(f"for_graph: expected a Graph, got {type(graph).__name__}; a table has no graph to suit")
        split = make_split(graph, seed=asked.config.seed) if split is None else split
        split = _as_split("for_graph", split)
        chosen = config_for(graph, split, check_device(choose_device(asked.device)))
        return cls(**(chosen.__dict__ | params))

    @property
    def config(self) -> Config:
        """The parameters as a checked `Config`."""
        values = {name: getattr(self, name) for name in _DEFAULTS if name not in _NO_SETTINGS}
        if self.random_state is not None:
            values["seed"] = _seed(self.random_state)
        return Config(**values)

    # ---------------------------------------------------------------- scikit-learn habits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, graph: Graph | ArrayLike, split: Split | ArrayLike | None = None) -> TokenphormerClassifier:
        """Train on a graph and a split (default: stratified 60/20/20), or on a table and its labels.

        What `tokenphormer train` would say of it is a warning here: a class without a training node, say. So is a split
        of the user's own that came with the graph and is not asked for: `train` would take it.
        """
        config = self.config
        classes = None
        _refuse_other(graph)
        if not isinstance(graph, Graph):
            graph, split, classes = self._read_table(graph, split, config.seed)
        elif hasattr(self, "feature_names_in_"):  # of a table that it was fitted on before
            del self.feature_names_in_
        if split is None:
            split = make_split(graph, seed=config.seed)
            if protocol_for(graph) == "given":
                _warn(
                    "fit: the graph comes with a split, and a stratified one is drawn beside it, which trains on test "
                    "nodes of that too; to take the graph's own, give make_split(graph, 'given')"
                )
        split = _as_split("fit", split)
        device = check_device(choose_device(self.device))
        with _ONE_AT_A_TIME, _own_random_numbers(device):
            pretrained = _sgpm(self.sgpm, graph, device)
            vectors = None if pretrained is None else pretrained.vectors(graph, config.sgpm_token, device)
            fitted = fit_tokenphormer(graph, split, config, device, sgpm=vectors, say=_warn)
        self._take(fitted, graph, split, config, pretrained)
        if classes is not None:
            self.classes_ = classes
        return self

    def _read_table(self, X: ArrayLike, y: object, seed: int) -> tuple[Graph, Split, NDArray[Any]]:
        """Rows without edges, a split with a fifth of them for validation, and the classes as they were given."""
        if y is None:
            raise ValueError("fit: a table needs its labels: requires y to be passed, but the target y is None")
        table, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, ensure_min_samples=2)
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        names = tuple(map(str, classes))
        graph = Graph.from_edges(_NO_EDGES, len(numbers), x=table, y=numbers, class_names=names, name="table")
        columns = tuple(getattr(self, "feature_names_in_", ()))  # all texts, or scikit-learn has none
        if len(set(columns)) == graph.num_features:
            graph = dataclasses.replace(graph, feature_names=columns)
        split = stratified_split(graph.y, seed, train=0.8, val=0.2)
        if not len(split.val):  # no class has more than two rows
            row = np.flatnonzero(numbers == np.bincount(numbers).argmax())[:1]
            split = Split(np.setdiff1d(split.train, row), row, [], name=split.name)
        return graph, split, classes

    def _take(
        self, fitted: Fitted, graph: Graph, split: Split, config: Config, pretrained: PretrainedSGPM | None
    ) -> None:
        self.graph_: Graph | None = graph
        self.split_: Split | None = split
        self.sgpm_ = pretrained
        self.method_ = fitted.method
        self.history_ = fitted.progress.history
        self.fitted_ = fitted
        self.config_ = config
        self.weights_ = fitted.method.weights
        self.classes_ = np.array(graph.class_names)
        self.n_features_in_ = graph.num_features
        self.feature_names_ = graph.feature_names
        if graph.feature_names is not None:  # by which scikit-learn knows the columns of a table
            self.feature_names_in_: NDArray[np.object_] = np.array(graph.feature_names, dtype=object)

    def predict_proba(
        self, graph: Graph | ArrayLike | None = None, nodes: ArrayLike | None = None
    ) -> NDArray[np.float32]:
        """(nodes, classes) probabilities: on the graph it was trained on, or on another with the same features."""
        method, on = self._method_for(graph)
        return self._predict(method, np.arange(on.num_nodes) if nodes is None else _check_nodes(nodes, on))

    def _predict(self, method: TokenphormerMethod, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        with method.source.lock:  # several threads may ask at once
            return predict(method, nodes, self.config_, method.source.device)

    def predict(self, graph: Graph | ArrayLike | None = None, nodes: ArrayLike | None = None) -> NDArray[Any]:
        """(nodes) names of the most probable classes."""
        best = self.predict_proba(graph, nodes).argmax(axis=1)
        named: NDArray[Any] = self.classes_[best]
        return named

    def score(self, graph: Graph | ArrayLike | None = None, nodes: ArrayLike | None = None) -> float:
        """Accuracy: over `nodes`, or the split's test nodes on the training graph, or all labelled nodes.

        Nodes without a label are left out; if none is left, that is an error. With a table in place of the graph,
        `nodes` are its labels, as scikit-learn has it.
        """
        if graph is not None and not isinstance(graph, Graph):
            if nodes is None:
                raise InputError("score: expected the labels of the table's rows as the second argument, got None")
            predicted, labels = self.predict(graph), column_or_1d(nodes)
            check_consistent_length(predicted, labels)
            _check_kind(labels, self.classes_)
            return float(np.mean(predicted == labels))
        method, on = self._method_for(graph)
        by_split = nodes is None and self.split_ is not None and self._is_own(on if graph is None else graph)
        if nodes is None:
            nodes = self.split_.test if by_split and self.split_ is not None else np.arange(on.num_nodes)
        chosen = _check_nodes(nodes, on)
        labelled = chosen[on.y[chosen] >= 0]
        if not len(labelled):
            what = f"none of {len(chosen):,} nodes of graph '{on.name}' has a label"
            if not len(chosen):
                what = "the split has no test nodes" if by_split else "there are no nodes"
            raise InputError(f"score: {what}; expected some with labels, so name others, such as nodes=split.val")
        own = [on.class_names[number] for number in np.unique(on.y[labelled])]
        if not set(own) & set(map(str, self.classes_)):
            raise InputError(
                f"score: the labels of graph '{on.name}' ({_listed(own)}) are none of the model's classes "
                f"({_listed(list(map(str, self.classes_)))}); classes are told by their names (class_names)"
            )
        best = self._predict(method, labelled).argmax(axis=1)
        names = np.array([str(name) for name in self.classes_])  # of a table they may be numbers
        return float(np.mean(names[best] == np.array(on.class_names)[on.y[labelled]]))

    def _is_own(self, graph: Graph) -> bool:
        """Whether it is the training graph, or one like it in all: read again, say."""
        own = self.graph_
        return graph is own or (own is not None and graph.fingerprint == own.fingerprint)

    def explainer(self, graph: Graph | None = None) -> Explainer:
        """What explains the predictions on a graph: for many nodes of it, or to measure how faithful that is."""
        method, on = self._method_for(graph)
        return Explainer(method, on, tuple(map(str, self.classes_)), self.config_.votes)

    def explain(
        self, node: int | str, graph: Graph | None = None, method: MethodName | Literal["auto"] = "auto"
    ) -> Explanation:
        """Which tokens, nodes and edges the prediction of a node rests on (docs/explain.md).

        The node is named by its id (a string) or its index (a whole number), the graph as in `predict`.
        """
        return self.explainer(graph).explain(node, method)

    def _method_for(self, graph: Graph | ArrayLike | None) -> tuple[TokenphormerMethod, Graph]:
        if not hasattr(self, "weights_"):
            raise NotFittedError("this TokenphormerClassifier is not fitted yet; call fit first")
        _refuse_other(graph)
        if graph is None or graph is self.graph_:
            if self.graph_ is None:
                raise InputError("a model loaded from disk has no graph with it; give one to predict on")
            return self.method_, self.graph_
        if isinstance(graph, Graph):
            on = graph
        else:
            table = validate_data(self, graph, reset=False, accept_sparse="csr", dtype=np.float32)
            on = Graph.from_edges(_NO_EDGES, table.shape[0], x=table, name="table")
        on = self.prepared(on)
        device = check_device(choose_device(self.device))
        count = len(self.classes_)
        with _ONE_AT_A_TIME, _own_random_numbers(device):
            vectors = None if self.sgpm_ is None else self.sgpm_.vectors(on, self.config_.sgpm_token, device)
            method = TokenphormerMethod(on, self.config_, count, device, sgpm=vectors, weights=self.weights_)
        return method, on

    def prepared(self, graph: Graph) -> Graph:
        """The graph as the model takes it: the features it was trained on, in their order; or an error.

        Features are told by their names where both graphs have some (`Graph.feature_names`), else only counted. A small
        graph on disk is read whole if the model takes whole graphs alone (`row_activation`).
        """
        graph = _in_order(graph, self.feature_names_, self.n_features_in_)
        return _whole(graph, self.config_) if self.config_.row_activation else graph

    # ---------------------------------------------------------------- files

    def save_pretrained(self, folder: str | Path, *, with_sgpm: bool = True) -> None:
        """Write weights, settings, class names, and the SGPM if there is one: safetensors with JSON inside.

        A model that was saved there before is replaced; the folder of a run is refused.
        """
        if not hasattr(self, "weights_"):
            raise NotFittedError("this TokenphormerClassifier is not fitted yet; call fit first")
        from tokenphormer import __version__

        if (Path(folder) / RUN_FILE).exists():
            raise InputError(f"save_pretrained: {folder} is a run, whose model would be lost; choose another folder")
        if self.classes_.dtype.kind not in "biufU" and not all(isinstance(c, str | int | float) for c in self.classes_):
            came = f"{type(self.classes_[0]).__name__}, such as {self.classes_[0]}"
            raise InputError(f"save_pretrained: in a file classes are texts or numbers, not {came}; fit on their texts")
        meta: dict[str, object] = {
            "version": __version__,
            "config": self.config_.to_dict(),
            "classes": self.classes_.tolist(),
            "num_features": self.n_features_in_,
            "graph": {} if self.graph_ is None else {"name": self.graph_.name, "fingerprint": self.graph_.fingerprint},
        }
        if self.feature_names_ is not None:
            meta["feature_names"] = list(self.feature_names_)
        elif hasattr(self, "feature_names_in_"):  # of a table in which a name stands twice
            meta["columns"] = self.feature_names_in_.tolist()
        if self.sgpm_ is not None:
            meta["sgpm"] = self.sgpm_.hash
            if with_sgpm:
                self.sgpm_.save(Path(folder) / SGPM_FILE)
        save_tensors(Path(folder) / WEIGHTS_FILE, self.weights_, meta)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> TokenphormerClassifier:
        """Read what `save_pretrained` wrote; predictions then need a graph."""
        path = Path(folder) / WEIGHTS_FILE
        weights, meta = load_tensors(path)
        pretrained = None
        if "sgpm" in meta:
            run = Path(folder).absolute().parent.parent  # a seed's is its run's
            places = [Path(folder) / SGPM_FILE, run / SGPM_FILE]
            found = next((place for place in places if place.exists()), places[0])
            pretrained = PretrainedSGPM.load(found, torch.device("cpu"))
            if pretrained.hash != meta["sgpm"]:
                raise InputError(f"{found}: is not the SGPM that the model was trained with")
        try:
            values: Any = meta["config"]
            loaded = cls(**Config().replace(values).__dict__, device=device, sgpm=pretrained)
            classes: Any = meta["classes"]
            loaded.classes_ = np.array(classes)
            if loaded.classes_.ndim != 1:
                raise ValueError(f"classes: expected a list, got shape {loaded.classes_.shape}")
            loaded.n_features_in_ = int(str(meta["num_features"]))
            loaded.feature_names_ = _names(meta.get("feature_names"), loaded.n_features_in_)
            columns: Any = meta.get("columns", meta.get("feature_names"))
            if columns is not None:  # of a table; scikit-learn then compares names and order
                if not isinstance(columns, list) or len(columns) != loaded.n_features_in_:
                    raise ValueError(f"columns: expected a list of {loaded.n_features_in_} names")
                loaded.feature_names_in_ = np.array(list(map(str, columns)), dtype=object)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: its description is not one of this version ({error})") from error
        loaded.config_, loaded.weights_, loaded.graph_, loaded.split_ = loaded.config, weights, None, None
        loaded.sgpm_ = pretrained
        return loaded


def _sgpm(given: object, graph: Graph, device: torch.device) -> PretrainedSGPM | None:
    """The SGPM that a parameter names."""
    if given is None:
        return None
    if given == "auto":
        return find_or_pretrain(graph, default_settings(device), device)
    pretrained = given if isinstance(given, PretrainedSGPM) else PretrainedSGPM.load(Path(str(given)), device)
    pretrained.check(graph)
    return pretrained


def _names(given: object, count: int) -> tuple[str, ...] | None:
    """Names of features as a file has them; models written before there were any have none."""
    if given is None:
        return None
    if not isinstance(given, list) or len(set(map(str, given))) != count or len(given) != count:
        raise ValueError(f"feature_names: expected a list of {count} different names")
    return tuple(map(str, given))


def _in_order(graph: Graph, names: tuple[str, ...] | None, count: int) -> Graph:
    """The graph with its features in the order of `names`; other features are an error that says which."""
    own = graph.feature_names
    if names is None or own is None:
        if graph.num_features != count:
            raise InputError(
                f"the model was trained on {count} features, graph '{graph.name}' has {graph.num_features}"
            )
        return graph
    if own == names:
        return graph
    place, wanted = {name: number for number, name in enumerate(own)}, set(names)
    missing, additional = [name for name in names if name not in place], [name for name in own if name not in wanted]
    if missing or additional:
        lists = (("missing", missing), ("additional", additional))
        listed = "; ".join(f"{what}: {_listed(some)}" for what, some in lists if some)
        whose = f"{count} features, graph '{graph.name}' has {len(own)}"
        if count == len(own):
            whose = f"features of other names than graph '{graph.name}' has"
        raise InputError(
            f"the model was trained on {whose}; {listed}. Give the nodes table the columns it was trained on"
        )
    order = [place[name] for name in names]
    assert graph.x is not None
    x: Any = graph.x[:, order]
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x)
    else:
        x.sort_indices()
    return dataclasses.replace(graph, x=x, feature_names=names, stored=None)


def _whole(graph: Graph, config: Config) -> Graph:
    """The graph in memory, if it can be projected whole; else an error that says what else can be done."""
    graph = as_taken(graph, config)
    if not projects_whole(graph, config.hidden_channels):
        where = f"is on disk, with more than {MOST_NODES:,} nodes" if graph.stored is not None else "is too large"
        raise InputError(
            f"graph '{graph.name}' ({graph.num_nodes:,} nodes) {where}, and the model takes graphs whole, as it was "
            "trained with row_activation; train one for it with --set row_activation=false"
        )
    return graph


def _listed(names: list[Any], most: int = 5) -> str:
    """The first few names.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c"], 2)
    ("'a', 'b'", "'a', 'b' and 1 more")
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _signature() -> inspect.Signature:
    """What scikit-learn's `get_params` and `clone` read: every setting by its name."""
    keyword, first = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    settings = [inspect.Parameter(name, keyword, default=default) for name, default in _DEFAULTS.items()]
    return inspect.Signature([inspect.Parameter("self", first), *settings])


TokenphormerClassifier.__init__.__signature__ = _signature()  # type: ignore[attr-defined]  # functions do take it


def _seed(random_state: object) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    raise InputError(f"random_state: {random_state!r}; expected a whole number, a RandomState or None")


def _own_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn here has seeds of its own; what a caller draws from torch is not to start anew by them."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


def _refuse_other(graph: object) -> None:
    """Raise for what is a graph to its user, but no Graph; a table passes."""
    if isinstance(graph, str | Path):
        raise InputError(f"expected a Graph, got the name {str(graph)!r}; read it first: load_graph({str(graph)!r})")
    makers = {"networkx": "from_networkx", "torch_geometric": "from_pyg"}
    library = type(graph).__module__.partition(".")[0]
    if library in makers:
        came = f"{library}.{type(graph).__name__}"  # theirs may be called Graph too
        raise InputError(f"expected a Graph, got a {came}; tokenphormer.graph.{makers[library]} makes one of it")


def _as_split(where: str, split: object) -> Split:
    if not isinstance(split, Split):
        raise InputError(f"{where}: expected a Split beside a Graph, got {type(split).__name__}; see make_split")
    return split


def _check_kind(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    """Raise if labels are texts and classes are not, or the other way round: no prediction would be right."""
    own, names = list(dict.fromkeys(labels.tolist())), classes.tolist()
    if {isinstance(label, str) for label in own}.isdisjoint(isinstance(name, str) for name in names):
        which = f"the labels ({_listed(own)}) are none of the model's classes ({_listed(names)})"
        raise InputError(f"score: {which}: texts on one side alone; give them as the classes are")


def _check_nodes(nodes: ArrayLike, graph: Graph) -> NDArray[np.int64]:
    chosen = np.asarray(nodes)
    if chosen.size and (chosen.ndim != 1 or chosen.dtype.kind not in "iu"):
        of_ids = chosen.dtype.kind in "OUST"
        hint = (
            "turn ids into indices with graph.index_of" if of_ids else "turn a mask into indices with numpy.flatnonzero"
        )
        hint = "put a single node into a list" if chosen.ndim == 0 and not of_ids else hint
        raise InputError(
            f"nodes: expected a list of node indices, got shape {chosen.shape}, dtype {chosen.dtype}; {hint}"
        )
    chosen = chosen.astype(np.int64).reshape(-1)
    bad = (chosen < 0) | (chosen >= graph.num_nodes)
    if bad.any():
        raise InputError(f"nodes: {chosen[bad][0]}, but the graph has nodes 0 to {graph.num_nodes - 1}")
    return chosen
