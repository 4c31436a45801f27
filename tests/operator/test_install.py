"""The install manifest and the command line."""

from __future__ import annotations

import pytest
import yaml

from pdpool_operator import install, settings
from pdpool_operator.records import CHILD_RESOURCES, POOLS, WATCHED


def documents() -> list[dict[str, object]]:
    return list(yaml.safe_load_all(install.INSTALL_FILE.read_text()))


def test_the_manifest_is_generated() -> None:
    """The file in the repository is what its sources make."""
    assert install.main(["--check"]) == 0


def test_the_permissions_hold_no_wildcard_and_no_secret() -> None:
    """No `*` anywhere, nothing about Secrets, and no write to a pool but to its status."""
    for rule in [*install.pool_rules(), *install.lease_rules()]:
        for words in rule.values():
            assert "*" not in words
        assert "secrets" not in rule["resources"]
        if "inferencepools" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "list", "watch"}


@pytest.mark.parametrize("resource", WATCHED, ids=str)
def test_every_watched_kind_may_be_listed_and_every_child_written(resource: object) -> None:
    """A kind that is watched without the right to would leave the operator blind for ever."""
    (rule,) = [
        each
        for each in install.pool_rules()
        if any(resource.plural == name for name in each["resources"]) and each["apiGroups"] == [resource.group]  # type: ignore[attr-defined]
    ]
    assert {"list", "watch"} <= set(rule["verbs"])
    assert (resource in CHILD_RESOURCES) is ({"create", "patch", "delete"} <= set(rule["verbs"]))
    assert resource is not POOLS or "patch" not in rule["verbs"]


def test_the_operator_meets_the_restricted_standard() -> None:
    """Its namespace enforces the restricted standard, and its pod keeps to it."""
    by_kind = {str(each["kind"]): each for each in documents()}
    assert by_kind["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"  # type: ignore[index]
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]  # type: ignore[index]
    context = pod["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_arguments_of_the_manifest_are_taken() -> None:
    """What the manifest starts the operator with is what its command line knows."""
    (deployment,) = [each for each in documents() if each["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]  # type: ignore[index]
    assert settings.parse(arguments).images.router == settings.DEFAULT_ROUTER_IMAGE


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
