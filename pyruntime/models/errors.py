"""The errors of models and servers that cannot be had. Values; any thread."""

from __future__ import annotations


class ModelUnavailable(RuntimeError):
    """Raised if a model cannot be loaded in this process, or could not be loaded before.

        >>> from pillarbox.models import ModelUnavailable
        >>> ModelUnavailable("no-such-folder", "cpu", "FileNotFoundError: model.onnx").model
        'no-such-folder'

    model: its path or name. device: where it was to be. reason: the class and the text of what was raised.
    """

    is_permanent = True

    def __init__(self, model: str, device: str, reason: str) -> None:
        super().__init__(f"the model {model!r} could not be loaded on {device}: {reason}")
        self.model, self.device, self.reason = model, device, reason

    def __reduce__(self) -> tuple[type[ModelUnavailable], tuple[str, str, str]]:
        return type(self), (self.model, self.device, self.reason)


class ServerUnavailable(RuntimeError):
    """Raised if a server cannot be started on this host, or does not become healthy in its time.

        >>> from pillarbox.models import Served, ServerUnavailable
        >>> try:
        ...     with Served(["no-such-program", "--port", "{port}"]):
        ...         pass
        ... except ServerUnavailable as error:
        ...     print(str(error).partition(";")[0])
        no-such-program: cannot be started: No such file or directory

    Its text has the last lines that the server has printed.
    """
