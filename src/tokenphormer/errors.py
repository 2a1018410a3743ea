"""The exceptions of tokenphormer.

TokenphormerError            everything this package raises on purpose
├── InputError               what a user gave is wrong: a file, a row, an option (exit code 2)
│   └── DatasetMissingError  a dataset by name whose files are neither here nor to be downloaded
├── ResourceError            the machine cannot: no memory, no disk, no such device (exit code 3)
│   └── OtherRankError       of several processes another one failed, and says why (its exit code)
└── InterruptedTrainingError a signal ended a training that can be gone on with (exit code 128 + signal)
"""

from signal import SIGINT


class TokenphormerError(Exception):
    """Base of every exception that this package raises on purpose."""


class InputError(TokenphormerError, ValueError):
    """Something a user gave is wrong. The message says what was expected, what came, and where."""


class DatasetMissingError(InputError):
    """A named dataset is neither on disk nor to be downloaded; the message says where to put what."""


class ResourceError(TokenphormerError, RuntimeError):
    """The machine cannot do what was asked: memory, disk, a device that is not there."""


class OtherRankError(ResourceError):
    """Another of several processes has failed; it tells the reason, this one only ends, with the same exit code."""

    def __init__(self, message: str, code: int = 3) -> None:
        super().__init__(message)
        self.code = code


class InterruptedTrainingError(TokenphormerError):
    """Training was stopped from outside, by Ctrl-C or SIGTERM; the message says what is kept and how to go on."""

    def __init__(self, message: str, signal: int = SIGINT) -> None:
        super().__init__(message)
        self.signal = int(signal)


def exit_code(error: BaseException) -> int:
    """What a process that ends with an error tells its parent.

    >>> exit_code(InputError("no such file")), exit_code(InterruptedTrainingError("stopped"))
    (2, 130)
    """
    if isinstance(error, OtherRankError):
        return error.code
    if isinstance(error, InterruptedTrainingError):
        return 128 + error.signal
    if isinstance(error, KeyboardInterrupt):
        return 128 + SIGINT
    if isinstance(error, InputError):
        return 2
    return 3 if isinstance(error, TokenphormerError | OSError | MemoryError) or gpu_is_full(error) else 1


def gpu_is_full(error: BaseException) -> bool:
    """Whether it is torch's error for a GPU without memory, told by its name: torch itself is not imported for this."""
    return type(error).__name__ == "OutOfMemoryError"
