"""The operator's command line."""

from __future__ import annotations

import pytest

from pdpool_operator import settings


def test_flags_have_the_documented_defaults() -> None:
    """Without flags the operator serves every namespace at port 8081."""
    found = settings.parse([])
    assert (found.namespace, found.port, found.log_level) == (None, 8081, "info")


@pytest.mark.parametrize(
    "arguments", [["--port", "70000"], ["--port", "x"], ["--namespace", ""], ["--log-format", "xml"], ["--names", "x"]]
)
def test_bad_flags_name_themselves(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A flag with a bad value ends the start with a message that names the flag."""
    with pytest.raises(SystemExit) as ended:
        settings.parse(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_secrets_may_be_read_where_told_and_in_the_only_namespace() -> None:
    """Listed namespaces, and the one that is looked at when it is the only one; else none."""
    assert settings.parse([]).secret_namespaces == frozenset()
    assert settings.parse(["--secret-namespace=a", "--secret-namespace", "b"]).secret_namespaces == {"a", "b"}
    assert settings.parse(["--namespace=n", "--secret-namespace=a"]).secret_namespaces == {"n", "a"}
