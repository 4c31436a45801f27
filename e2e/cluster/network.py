"""The cluster's own network on this machine: one bridge, one table of packet rules, no route to anywhere else.

Boundary: what must exist before the first daemon starts; Services are kube-proxy's, pod addresses are CNI's.
A table of ours drops every packet for the Pod and Service ranges that would leave by another link, before and after
the bridge exists,
and refuses what pods send elsewhere: the cluster is a closed world whatever else is missing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.commands import run, succeeds
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from e2e.cluster.ledger import Ledger

BRIDGE: Final = "pdpool0"
NODE_ADDRESS: Final = "10.244.0.1"
POD_RANGE: Final = "10.244.0.0/24"
FIRST_POD_ADDRESS: Final = "10.244.0.10"
SERVICE_RANGE: Final = "10.96.0.0/16"
API_SERVICE_ADDRESS: Final = "10.96.0.1"
DNS_ADDRESS: Final = "10.96.0.10"
TABLE: Final = "pdpool"
# kube-proxy in its nftables mode keeps all it does in two tables of its own, which go in one step each.
PROXY_TABLES: Final = ("ip kube-proxy", "ip6 kube-proxy")

_RULES: Final = f"""
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  chain keep_in {{
    type filter hook postrouting priority 0; policy accept;
    oifname != {{ "{BRIDGE}", "lo" }} ip daddr {{ {POD_RANGE}, {SERVICE_RANGE} }} drop
  }}
  chain keep_pods_in {{
    type filter hook forward priority 0; policy accept;
    iifname "{BRIDGE}" oifname != "{BRIDGE}" reject
    iifname != "{BRIDGE}" oifname "{BRIDGE}" drop
  }}
}}
"""


def check_free() -> None:
    """Raise `ClusterError` if somebody else's network would meet ours: an overlapping route, another kube-proxy."""
    for route in json.loads(run(["ip", "-json", "route", "show", "table", "all"]) or "[]"):
        destination = str(route.get("dst", ""))
        if destination.startswith(("10.244.0.", "10.96.")) and route.get("dev") != BRIDGE:
            raise ClusterError(f"the range {destination} is in use on {route.get('dev')}: another cluster's network?")
    tables = run(["nft", "list", "tables"])
    if any(f"table {table}\n" in tables for table in PROXY_TABLES):
        raise ClusterError("another kube-proxy has its tables on this machine; take that cluster down first")
    if Path("/sys/class/net", BRIDGE).exists():
        raise ClusterError(
            f"the link {BRIDGE} exists and no ledger tells of it; remove it by `ip link delete {BRIDGE}`"
        )


def raise_network(ledger: Ledger) -> None:
    """Make rules, bridge and routes, in the order that never lets a packet out."""
    if shutil.which("modprobe"):
        succeeds(["modprobe", "-a", "overlay", "br_netfilter"])
    ledger.record("nft-table", f"inet {TABLE}")
    run(["nft", "-f", "-"], text_input=_RULES)
    for table in PROXY_TABLES:
        ledger.record("nft-table", table)
    ledger.record("link", BRIDGE)
    # Replies between two pods of the bridge must meet the address translation that the request met.
    run(["ip", "link", "add", BRIDGE, "type", "bridge", "nf_call_iptables", "1"])
    run(["ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE])
    run(["ip", "address", "add", f"{DNS_ADDRESS}/32", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    run(["ip", "route", "add", SERVICE_RANGE, "dev", BRIDGE])
    set_sysctl(ledger, "net/ipv4/ip_forward", "1")
    _accept_forwarding(ledger)


def set_sysctl(ledger: Ledger, name: str, value: str) -> None:
    """Set a kernel parameter, keeping what it was in the ledger."""
    path = Path("/proc/sys") / name
    note_sysctl(ledger, name)
    path.write_text(value)


def note_sysctl(ledger: Ledger, name: str) -> None:
    """Keep in the ledger what a kernel parameter is now, because one of the daemons will change it."""
    path = Path("/proc/sys") / name
    if path.exists() and not any(entry.name == name for entry in ledger.entries("sysctl")):
        ledger.record("sysctl", name, path.read_text().strip())


def _accept_forwarding(ledger: Ledger) -> None:
    """Let pods reach each other where another tool (Docker does) made the machine drop what it forwards."""
    if "-P FORWARD DROP" not in run(["iptables", "-S", "FORWARD"]).splitlines():
        return
    rule = f"FORWARD -i {BRIDGE} -o {BRIDGE} -j ACCEPT"
    ledger.record("iptables-rule", rule)
    run(["iptables", "-I", *rule.split()])
