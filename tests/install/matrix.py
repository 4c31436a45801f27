"""Values of the chart that its tests try: each value once at least, and those that touch permissions in every pair."""

from __future__ import annotations

from typing import Any, Final

DIGEST: Final = f"sha256:{'0123456789abcdef' * 4}"
POD: Final[dict[str, Any]] = {
    "podLabels": {"team": "serving", "app.kubernetes.io/name": "never-this"},
    "podAnnotations": {"note": "yes: it's"},
    "resources": {},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "pdpool-operator"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
}

ROWS: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "namespaced": {"namespaced": True},
    "secrets": {"secretNamespaces": ["team-a", "team-b"]},
    "namespaced-secrets": {"namespaced": True, "secretNamespaces": ["team-a"]},
    "second-release": {"namespaced": True, "crds.install": False},
    "no-crd": {"crds.install": False, "secretNamespaces": ["team-b"]},
    "crd-not-kept": {"crds.keep": False},
    "available": {"replicas": 3, "networkPolicy.enabled": False},
    "monitored": {
        "podMonitor": {"enabled": True, "interval": "1m30s", "labels": {"release": "prometheus"}},
        "networkPolicy.namespaces": ["observability", "monitoring"],
        "alertRules": {"enabled": True, "runbooks": "https://wiki.example.com/pdpool", "labels": {"release": "p"}},
        "dashboard.enabled": True,
    },
    "images": {
        "image": {"repository": "registry.example.com:5000/pdpool/operator", "digest": DIGEST, "pullPolicy": "Always"},
        "routerImage": {"repository": "registry.example.com:5000/pdpool/router", "tag": "1.2.3-rc.1"},
        "engineImage": f"registry.example.com:5000/vllm@{DIGEST}",
        "imagePullSecrets": [{"name": "registry"}],
    },
    "pod": POD,
    "talkative": {
        "logLevel": "debug",
        "logFormat": "console",
        "extraArgs": ["--port=8081"],
        "extraEnv": [
            {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}},
        ],
        "serviceAccount.annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"},
    },
    "everything": {
        **POD,
        "namespaced": True,
        "replicas": 2,
        "secretNamespaces": ["team-a", "team-b"],
        "podMonitor.enabled": True,
        "alertRules.enabled": True,
        "dashboard": {"enabled": True, "labels": {"dashboards": "grafana"}},
        "image.tag": "1.2.3",
        "routerImage.digest": DIGEST,
    },
}

REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "misspelt": ({"replica": 2}, "replica"),
    "misspelt-inside": ({"crds.instal": False}, "instal"),
    "replicas": ({"replicas": -1}, "replicas"),
    "replicas-text": ({"replicas": "two"}, "replicas"),
    "digest": ({"image.digest": "sha256:abc"}, "digest"),
    "tag": ({"routerImage.tag": "a b"}, "tag"),
    "repository": ({"image.repository": ""}, "repository"),
    "namespace": ({"secretNamespaces": ["Team_A"]}, "secretNamespaces"),
    "namespace-twice": ({"secretNamespaces": ["a", "a"]}, "secretNamespaces"),
    "level": ({"logLevel": "loud"}, "logLevel"),
    "flag": ({"extraArgs": ["port=1"]}, "extraArgs"),
    "own-variable": ({"extraEnv": [{"name": "POD_NAMESPACE", "value": "x"}]}, "extraEnv"),
    "runbooks": ({"alertRules.runbooks": "wiki"}, "runbooks"),
    "runbooks-slash": ({"alertRules.runbooks": "https://wiki/"}, "runbooks"),
    "interval": ({"podMonitor.interval": "soon"}, "interval"),
}
