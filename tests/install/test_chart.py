"""The chart and the plain manifest: permissions, restricted pods, arguments, and values that are refused."""

from __future__ import annotations

import json
import shutil
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.chart import CHART, HELM3, HELM4, INSTALL_FILE, NAMESPACE, documents, render
from e2e.chart.__main__ import main as render_manifest
from e2e.cluster.progress import ClusterError
from pdpool_operator import install, settings
from pdpool_operator.build import network_policies
from pdpool_operator.records import CHILD_RESOURCES, POOLS, WATCHED
from tests.install.matrix import DIGEST, POD, REFUSED, ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from pdpool_operator.records import Resource

pytestmark = pytest.mark.xdist_group("chart")  # what one test rendered serves the next

Json = dict[str, Any]
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding"}
ROOT = CHART.parents[1]


@cache
def rendered(row: str, program: str = HELM4) -> list[Json]:
    """The objects of one row of the matrix."""
    return documents(render(values=ROWS[row], program=program))


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [each for each in objects if each["kind"] == kind]


def operator_pod(objects: list[Json]) -> Json:
    (deployment,) = of_kind(objects, "Deployment")
    pod: Json = deployment["spec"]["template"]["spec"]
    return pod


def test_generated_files_are_up_to_date() -> None:
    """The chart's files and the manifest are what their sources make."""
    assert install.main(["--check"]) == 0
    assert render_manifest(["--check"]) == 0


def test_a_difference_of_a_generated_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` fails and names the file; writing mends it."""
    for source in (install.CRD_FILE, install.ARGO_CD / "health.lua"):
        (tmp_path / source).parent.mkdir(parents=True)
        shutil.copy(ROOT / source, tmp_path / source)
    monkeypatch.setattr(install, "_ROOT", tmp_path)
    assert install.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert all(str(path) in said for path in install.generated(tmp_path))
    assert install.main([]) == 0
    assert install.main(["--check"]) == 0


@pytest.mark.parametrize("row", ROWS)
def test_permissions_hold_no_wildcard_and_secrets_only_where_told(row: str) -> None:
    """No `*`; `get` on Secrets only in the namespaces given (and its own, when namespaced), never cluster-wide."""
    objects = rendered(row)
    reads_secrets = []
    for role in [*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")]:
        for rule in role["rules"]:
            assert not any("*" in words for words in rule.values())
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert rule["verbs"] == ["get"] or role["metadata"]["namespace"] == NAMESPACE
                if rule["verbs"] == ["get"] and "resourceNames" not in rule:
                    reads_secrets.append(role["metadata"]["namespace"])
    values = ROWS[row]
    own = [NAMESPACE] if values.get("namespaced") else []
    assert reads_secrets == [*own, *values.get("secretNamespaces", [])]
    bound = [each["metadata"]["namespace"] for each in of_kind(objects, "RoleBinding")]
    assert sorted(bound) == sorted([NAMESPACE, *reads_secrets])


@pytest.mark.parametrize("row", ROWS)
def test_a_namespaced_release_has_nothing_of_the_whole_cluster_but_the_crd(row: str) -> None:
    """With `namespaced: true` no ClusterRole is rendered, and the operator is told its namespace; else both."""
    objects = rendered(row)
    namespaced = ROWS[row].get("namespaced", False)
    wide = [each["kind"] for each in objects if "namespace" not in each["metadata"]]
    crd = ["CustomResourceDefinition"] if ROWS[row].get("crds.install", True) else []
    assert sorted(wide) == sorted([*crd, *([] if namespaced else CLUSTER_SCOPED)])
    found = settings.parse(operator_pod(objects)["containers"][0]["args"])
    assert found.namespace == (NAMESPACE if namespaced else None)


@pytest.mark.parametrize("program", [HELM3, HELM4])
@pytest.mark.parametrize("row", ROWS)
def test_pods_meet_the_restricted_standard(row: str, program: str) -> None:
    """Whatever the values, and with both versions of helm: not as root, read-only, nothing to escalate with."""
    pod = operator_pod(rendered(row, program))
    context = pod["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_several_replicas_are_spread_over_nodes_unless_told_otherwise() -> None:
    """Softly, so that one node can hold all of them; what somebody gives stands instead."""
    (spread,) = operator_pod(rendered("available"))["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    (deployment,) = of_kind(rendered("available"), "Deployment")
    assert spread["labelSelector"] == deployment["spec"]["selector"]
    assert "topologySpreadConstraints" not in operator_pod(rendered("defaults"))
    assert operator_pod(rendered("everything"))["topologySpreadConstraints"] == POD["topologySpreadConstraints"]


@pytest.mark.parametrize("row", ROWS)
def test_both_versions_of_helm_render_the_same(row: str) -> None:
    """Not a byte of meaning differs between helm 3 and helm 4."""
    assert rendered(row, HELM3) == rendered(row, HELM4)


@pytest.mark.parametrize("row", ROWS)
def test_what_selects_the_operator_finds_its_pods(row: str) -> None:
    """Deployment, Service, budget, monitor and policy select the pods, and so do the policies that pools get."""
    objects = rendered(row)
    (deployment,) = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= network_policies.OPERATOR_LABELS.items()
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(each["spec"]["selector"] for each in of_kind(objects, "Service")),
    ]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(objects, "NetworkPolicy")]
    selectors += [
        each["spec"]["selector"]["matchLabels"]
        for each in [*of_kind(objects, "PodDisruptionBudget"), *of_kind(objects, "PodMonitor")]
    ]
    assert all(labels.items() >= each.items() for each in selectors)


def test_images_are_named_by_digest_where_one_is_given() -> None:
    """A digest wins over the tag; without both it is the chart's appVersion."""
    container = operator_pod(rendered("images"))["containers"][0]
    assert container["image"] == f"registry.example.com:5000/pdpool/operator@{DIGEST}"
    found = settings.parse(container["args"])
    assert found.images.router == "registry.example.com:5000/pdpool/router:1.2.3-rc.1"
    assert found.images.engine == f"registry.example.com:5000/vllm@{DIGEST}"
    plain = operator_pod(rendered("defaults"))["containers"][0]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert plain["image"] == f"localhost/pdpool-operator:{version}"
    assert settings.parse(plain["args"]).images.router == settings.DEFAULT_ROUTER_IMAGE


@pytest.mark.parametrize(
    ("pages", "link"),
    [
        ("", None),
        ("https://wiki.example.com/pdpool", "https://wiki.example.com/pdpool/PdpoolQueue"),
        ("https://d.example.com/{alert}.html", "https://d.example.com/PdpoolQueue.html"),
    ],
)
def test_alerts_name_their_runbooks_and_link_to_where_they_are_kept(pages: str, link: str | None) -> None:
    """The page's path in the repository always; a link only to a place that somebody named."""
    (rule,) = of_kind(
        documents(render(values={"alertRules.enabled": True, "alertRules.runbooks": pages})), "PrometheusRule"
    )
    (alert,) = [each for each in rule["spec"]["groups"][0]["rules"] if each["alert"] == "PdpoolQueue"]
    assert alert["annotations"]["runbook"] == "docs/runbooks/PdpoolQueue.md"
    assert alert["annotations"].get("runbook_url") == link


@pytest.mark.parametrize("row", ["defaults", "crd-not-kept"])
def test_the_crd_is_a_template_that_uninstalling_keeps(row: str) -> None:
    """It is upgraded with the chart and survives `helm uninstall`, unless told otherwise (Q17)."""
    (crd,) = of_kind(rendered(row), "CustomResourceDefinition")
    assert crd["metadata"].get("annotations", {}) == ({"helm.sh/resource-policy": "keep"} if row == "defaults" else {})
    (written,) = documents((ROOT / install.CRD_FILE).read_text())
    assert crd["metadata"]["name"] == written["metadata"]["name"]
    assert crd["spec"] == written["spec"]
    assert not (CHART / "crds").exists()


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("program", [HELM3, HELM4])
def test_bad_values_are_refused_by_name(case: str, program: str) -> None:
    """A misspelt or impossible value ends the rendering with a message that names it (Q22)."""
    values, word = REFUSED[case]
    with pytest.raises(ClusterError, match=word):
        render(values=values, program=program)


def test_the_schema_knows_every_value_and_says_what_it_is() -> None:
    """values.yaml and values.schema.json name the same keys, all of them described."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    open_ended = {"resources", "affinity", "nodeSelector", "podLabels", "podAnnotations", "serviceAccount.annotations"}

    def compare(of_schema: Json, given: Json, at: str = "") -> None:
        known = {key: each for key, each in of_schema["properties"].items() if f"{at}{key}" != "global"}
        assert list(known) == list(given), at
        for key, each in known.items():
            path = f"{at}{key}"
            described = each.get("description") or schema["definitions"][each["$ref"].rsplit("/", 1)[1]].get(
                "description"
            )
            assert described, path
            if isinstance(given[key], dict) and path not in open_ended and not path.endswith("labels"):
                assert each["additionalProperties"] is False, path
                compare(each, given[key], f"{path}.")

    compare(schema, values)


def _paths(values: Json) -> set[str]:
    """`key`, or `key.member` of a value that has members."""
    return {
        path
        for key, each in values.items()
        for path in ([f"{key}.{member}" for member in each] if isinstance(each, dict) and each else [key])
    }


def test_the_matrix_sets_every_value() -> None:
    """A new value is rendered, and taken by the API server, in one row at least."""
    tried = [f"{each}." for row in ROWS.values() for each in _paths(row)]
    values = [f"{each}." for each in _paths(yaml.safe_load((CHART / "values.yaml").read_text()))]
    # An open-ended value, as `resources`, is tried as a whole.
    assert [path for path in values if not any(each.startswith(path) or path.startswith(each) for each in tried)] == []


def test_versions_agree() -> None:
    """Chart, operator and router are released as one version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    declared = {
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in ("crds", "operator", "router")
    }
    assert {chart["version"], chart["appVersion"]} == declared


def test_the_manifest_is_the_chart_in_a_restricted_namespace() -> None:
    """The plain manifest adds only the Namespace, and nothing of it needs helm."""
    namespace, *rest = documents(INSTALL_FILE.read_text())
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert rest == rendered("crd-not-kept")
    assert "helm.sh/" not in INSTALL_FILE.read_text()


@pytest.mark.parametrize("resource", WATCHED, ids=str)
def test_every_watched_kind_may_be_listed_and_every_child_written(resource: Resource) -> None:
    """A kind that is watched without the right to would leave the operator blind for ever."""
    (rule,) = [
        each
        for each in install.pool_rules()
        if any(resource.plural == name for name in each["resources"]) and each["apiGroups"] == [resource.group]
    ]
    assert {"list", "watch"} <= set(rule["verbs"])
    assert (resource in CHILD_RESOURCES) is ({"create", "patch", "delete"} <= set(rule["verbs"]))
    assert resource is not POOLS or "patch" not in rule["verbs"]


@pytest.mark.parametrize("release", ["pdpool", "a", "x" * 53])
def test_any_release_name_gives_valid_names(release: str) -> None:
    """Names stay within 63 characters whatever helm allows (53)."""
    for each in documents(render(release=release)):
        assert len(each["metadata"]["name"]) <= 63


def test_the_chart_packages(tmp_path: Path) -> None:
    """What `helm package` would take is whole: a copy without the repository around it renders the same."""
    copy = shutil.copytree(CHART, tmp_path / "pdpool")
    assert documents(render(chart=copy)) == rendered("defaults")
