"""The OpenAPI description: what FastAPI cannot tell from the endpoints, which read their bodies themselves."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from dippm.server.answers import ErrorAnswer
from dippm.server.jobs import Verb
from dippm.server.questions import NAMED, OPTIONS

__all__ = ["ERRORS", "SUMMARIES", "add_questions", "describe_body"]

_TEMPLATE = "#/components/schemas/{model}"

SUMMARIES = {
    Verb.PREDICT: "Predict latency, energy, memory and the MIG slice.",
    Verb.FITS: "Say whether a model fits devices.",
    Verb.MAX_BATCH: "Find the largest batch that fits.",
    Verb.INSPECT: "Show which operators and modules the time and memory go to.",
}
_EXAMPLES: dict[Verb, dict[str, object]] = {
    Verb.PREDICT: {"batch": [1, 8, 32], "device": ["A100", "H100"], "precision": "amp"},
    Verb.FITS: {"batch": 64, "device": "1g.5gb@A100-SXM4-40GB"},
    Verb.MAX_BATCH: {"device": "A100", "mode": "training", "optimizer": "adamw"},
    Verb.INSPECT: {"device": "A100", "batch": 8, "top": 10},
}
_CAUSES = {
    400: "The request is wrong: an option, a batch, a shape, the form.",
    401: "The token is missing or wrong.",
    404: "There is no such path.",
    405: "The path is not asked by this method.",
    408: "The upload came too slowly.",
    413: "The upload or the request is too large.",
    415: "The kind of content, or the file's extension, is not taken.",
    421: "Without a token the service answers to the names of this machine alone.",
    422: "The model cannot be read, or something in it is not supported.",
    429: "Too many requests of one client; Retry-After says when.",
    500: "A defect of dippm.",
    501: "A framework is not installed where the service runs.",
    503: "Too much to do, no room for an upload, or about to stop; Retry-After says when.",
    504: "The model took too long.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": cause} for status, cause in _CAUSES.items()
}


def describe_body(verb: Verb) -> dict[str, Any]:
    """The request of a verb: a model by name as JSON, or a file and options as a form."""
    example = _EXAMPLES[verb]
    form = {
        "type": "object",
        "required": ["file"],
        "additionalProperties": False,
        "properties": {
            "file": {"type": "string", "format": "binary", "description": "The model; a folder as a .zip."},
            "options": {"$ref": _TEMPLATE.format(model=OPTIONS[verb].__name__)},
        },
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": _TEMPLATE.format(model=NAMED[verb].__name__)},
                    "example": {"model": "timm:resnet50", **example},
                },
                "multipart/form-data": {
                    "schema": form,
                    "encoding": {"options": {"contentType": "application/json"}},
                },
            },
        }
    }


def add_questions(description: dict[str, Any], *, has_token: bool) -> dict[str, Any]:
    """Add the schemas that the bodies refer to, and how to present a token."""
    models = [(model, "validation") for model in (*OPTIONS.values(), *NAMED.values())]
    _, found = models_json_schema(models, ref_template=_TEMPLATE)  # type: ignore[arg-type]
    components = description.setdefault("components", {})
    components.setdefault("schemas", {}).update(found["$defs"])
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in description["paths"].items():
            if path.startswith("/v1/") or path == "/metrics":
                for operation in methods.values():
                    operation["security"] = [{"token": []}]
    return description
