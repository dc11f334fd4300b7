"""Places and texts are found in what TorchScript's interpreter says, on the system that wrote it or another."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from dippm.frontends.torch.script_traceback import is_script_error, script_message, script_place

HEAD = "The following operation failed in the TorchScript interpreter.\n"

SERIALISED = """Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__.py", line 10, in forward
    return (l).forward(x, )
            ~~~~~~~~~~ <--- HERE
  File "code/__torch__/torch/nn/modules/linear.py", line 14, in forward
    return torch.linear(input, weight, bias)
           ~~~~~~~~~~~~ <--- HERE
"""

SCRIPTED = """
Traceback of TorchScript, original code (most recent call last):
  File "/home/me/net.py", line 26, in forward
        return self.l(x)
               ~~~~~~ <--- HERE
  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 134, in forward
        return F.linear(input, self.weight, self.bias)
               ~~~~~~~~ <--- HERE
"""

WINDOWS = r"""
Traceback of TorchScript, original code (most recent call last):
  File "C:\Users\me\net.py", line 7, in forward
        return self.l(x)
               ~~~~~~ <--- HERE
  File "C:\Python312\Lib\site-packages\torch\nn\modules\linear.py", line 134, in forward
        return F.linear(input, self.weight, self.bias)
               ~~~~~~~~ <--- HERE
"""

TRACED = """
Traceback of TorchScript, original code (most recent call last):
/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py(134): forward
/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py(1768): _slow_forward
/home/me/net.py(26): forward
/home/me/net.py(31): forward
/opt/venv/lib/python3.12/site-packages/torch/jit/_trace.py(1216): trace_module
/home/me/save.py(48): <module>
"""

TRACED_LIBRARY = """
Traceback of TorchScript, original code (most recent call last):
/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py(134): forward
/opt/venv/lib/python3.12/site-packages/torch/nn/modules/container.py(253): forward
/opt/venv/lib/python3.12/site-packages/torch/jit/_trace.py(1216): trace_module
/home/me/save.py(48): <module>
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (SCRIPTED, "/home/me/net.py:26"),
        (WINDOWS, r"C:\Users\me\net.py:7"),
        (TRACED, "/home/me/net.py:26"),
        # The line that saved the model is not the line that failed.
        (TRACED_LIBRARY, "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:134"),
        ("", "code/__torch__.py:10"),
    ],
)
def test_the_place_is_the_models_own(text: str, place: str) -> None:
    assert script_place(RuntimeError(f"{HEAD}{SERIALISED}{text}RuntimeError: \n")) == place


def test_a_place_that_is_not_told() -> None:
    assert "does not tell" in script_place(RuntimeError(f"{HEAD}RuntimeError: "))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("RuntimeError: list index out of range", ("RuntimeError", "list index out of range")),
        ("builtins.ValueError: three: no more", ("ValueError", "three: no more")),
        ("RuntimeError: \n", ("RuntimeError", "")),
    ],
)
def test_the_message_stands_last(last: str, message: tuple[str, str]) -> None:
    assert script_message(RuntimeError(f"{HEAD}{SERIALISED}{SCRIPTED}{last}")) == message


def test_other_exceptions_are_not_torchscripts() -> None:
    assert is_script_error(RuntimeError(f"{HEAD}RuntimeError: "))
    assert not is_script_error(ValueError("wrong\nin the TorchScript interpreter"))
    assert not is_script_error(ValueError())
