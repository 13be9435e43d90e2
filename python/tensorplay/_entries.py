"""What context managers keep between their entry and their end: by thread, for what they set belongs to the thread."""

from __future__ import annotations

from threading import get_ident

from tensorplay.errors import TensorPlayError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from typing import Any


class Entries:
    """The entries of one context manager that have not ended, with what each has to put back.

    It may be entered again, and by several threads at once: an end belongs to the newest entry of its thread.
    """

    __slots__ = ("_code", "_error", "_kept", "_name")

    def __init__(self, name: str, error: type[TensorPlayError], code: str) -> None:
        self._name, self._error, self._code = name, error, code
        self._kept: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        """How many entries have not ended, on all threads."""
        return sum(map(len, self._kept.values()))

    def push(self, value: Any) -> None:
        """Notes an entry on this thread, and what its end needs."""
        self._kept.setdefault(get_ident(), []).append(value)

    def pop(self) -> Any:
        """What the newest entry of this thread noted. An error where this thread has none: nothing is put back then."""
        here = get_ident()
        own = self._kept.get(here)
        if own is None:
            raise self._astray()
        value = own.pop()
        if not own:
            del self._kept[here]
        return value

    def _astray(self) -> TensorPlayError:
        if not self._kept:
            return self._error(
                f"{self._name} was left without being entered",
                code=self._code,
                notes=("write `with ...:`, which does both",),
            )
        return self._error(
            f"{self._name} was left on another thread than the one that entered it, where it is still in force",
            code=self._code,
            notes=(
                "it belongs to its thread: leave it there",
                "a generator that holds it is closed by the thread that runs it",
            ),
        )
