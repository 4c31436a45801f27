"""`POST /debug/decide`: what would be chosen for a request, and each term of the sum.

Boundary: it asks the policy and sends nothing to any engine. What it answers holds names, counts and milliseconds, and
no word of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api.engines.vllm import legs
from pdpool_router.edge.openai import asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_api.router_config import RouterConfig
    from pdpool_router.forward.choice import Choice

_ROUTES: Final = {route.path: route for route in legs.Route}


class Explainer:
    """Explains choices."""

    def __init__(self, choice: Choice, config: Callable[[], RouterConfig]) -> None:
        self._choice = choice
        self._config = config

    def explain(self, body: bytes, path: str) -> dict[str, Any]:
        """What would be chosen for a body posted to the API's `path` (empty: the route that its fields fit).

        Salts of tenants are not applied: give `cache_salt` as an engine would get it.

        Raises:
            ValueError: no such route, no such body, no such model; the message holds nothing of the body.
        """
        config = self._config()
        found = legs.received(body)
        route = _ROUTES.get(path) if path else _route_of(found.fields)
        if route is None:
            raise ValueError(f"route must be one of {', '.join(_ROUTES)}")
        model = legs.text_field(found.fields, "model") or config.model.served_names[0]
        if model not in (*config.model.served_names, *config.model.adapters):
            raise ValueError("the pool serves no such model")
        policy = self._choice.policy
        request = asked(found, route, model, adapters=frozenset(config.model.adapters), keys=policy.reads_prefixes)
        return {"policy": config.routing.policy, "route": route.path, **self._choice.explain(request)}


def _route_of(fields: legs.Fields) -> legs.Route:
    if "prompt" in fields:
        return legs.Route.COMPLETIONS
    return legs.Route.RESPONSES if "input" in fields else legs.Route.CHAT
