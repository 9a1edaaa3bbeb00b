"""`python -m tests.golden.profiled OUT ARGUMENTS`: `rlstm ARGUMENTS`, observed from one SIGUSR1 to the next.

OUT gets the functions called by package and module, the kinds of record made, and who serialised JSON.
"""

import dataclasses
import importlib.metadata
import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pydantic

PACKAGES = ("rlstm_server", "rlstm_model")
INNER = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")
ENCODERS = {"dumps", "to_json", "dump_json"}


class Profile:
    """What is called while `on`; every thread tells it."""

    def __init__(self, out: Path) -> None:
        self.on, self.out = False, out
        self.codes: set[Any] = set()
        self.records, self.serialisations = Counter[str](), Counter[str]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call of Python's or C's."""
        if not self.on:
            return
        if event == "call":
            code = frame.f_code
            module = frame.f_globals.get("__name__", "")
            if code.co_filename == "<string>":
                made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
                if made.__module__.startswith(PACKAGES) and code.co_name in {
                    "__init__",
                    "<lambda>",
                    "__new__",
                }:
                    self.records[f"{made.__module__}.{made.__qualname__}"] += 1
            elif module.startswith(PACKAGES) and code.co_name not in INNER:
                self.codes.add((module, code.co_qualname))
            elif module == "json" and code.co_name == "dumps":
                self._serialised(frame.f_back, "json.dumps")
        elif event == "c_call" and getattr(argument, "__name__", "") in ENCODERS:
            owner = getattr(argument, "__module__", None) or type(argument.__self__).__name__
            self._serialised(frame, f"{owner}.{argument.__name__}")

    def _serialised(self, frame: FrameType | None, how: str) -> None:
        while frame is not None and not frame.f_globals.get("__name__", "").startswith(PACKAGES):
            frame = frame.f_back
        where = "elsewhere" if frame is None else f"{frame.f_globals['__name__']}:{frame.f_code.co_name}"
        self.serialisations[f"{where} by {how}"] += 1

    def made(self, kind: type) -> None:
        """Note a pydantic model."""
        if self.on and kind.__module__.startswith(PACKAGES) and not dataclasses.is_dataclass(kind):
            self.records[f"{kind.__module__}.{kind.__qualname__}"] += 1

    def toggle(self, *_: Any) -> None:
        """Begin; the second time, write what was found."""
        if not self.on:
            for found in (self.codes, self.records, self.serialisations):
                found.clear()
            self.on = True
            self.out.with_suffix(".on").touch()
            return
        self.on = False
        functions: dict[str, dict[str, list[str]]] = {package: {} for package in PACKAGES}
        for module, name in sorted(self.codes):
            functions[module.split(".")[0]].setdefault(module, []).append(name)
        told = {
            "functions": functions,
            "records": dict(sorted(self.records.items())),
            "serialisations": dict(sorted(self.serialisations.items())),
        }
        written = self.out.with_suffix(".part")
        written.write_text(json.dumps(told))
        written.rename(self.out)


def main() -> None:
    """Run the command with all threads observed."""
    profile = Profile(Path(sys.argv[1]))
    sys.argv = ["rlstm", *sys.argv[2:]]

    def new(cls: type, *_: Any, **__: Any) -> Any:
        profile.made(cls)
        return object.__new__(cls)

    pydantic.BaseModel.__new__ = new  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, profile.toggle)
    threading.setprofile(profile)
    sys.setprofile(profile)
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="rlstm")
    command.load()()


if __name__ == "__main__":
    main()
