"""Answers are held against the OpenAPI document: whatever a test asks for, the document has said."""

from functools import cache

from jsonschema import Draft202012Validator
from starlette.routing import compile_path

_DOCUMENTS = {}
"""Written once: it takes longer than most tests. Without keys, and with."""

JSON = ("application/json", "application/problem+json")


def validator(document, schema):
    """What tells whether a value fits a schema of this document."""
    return Draft202012Validator({**schema, "components": document["components"]})


def checks(app):
    """A hook for httpx: every JSON answer of a documented route fits its schema."""
    document = _DOCUMENTS.get(app._keyed) or _DOCUMENTS.setdefault(app._keyed, app.openapi())
    # A path that is spelt out goes before one that also fits a template.
    templates = sorted(document["paths"], key=lambda template: "{" in template)
    routes = [(compile_path(template)[0], document["paths"][template]) for template in templates]

    @cache
    def of(method, path, status, media_type):
        fitting = [known for pattern, known in routes if pattern.fullmatch(path) and method.lower() in known]
        if not fitting:
            return None
        said = fitting[0][method.lower()]["responses"]
        assert status in said, f"{method} {path} says nothing of {status}"
        return validator(document, said[status]["content"][media_type]["schema"])

    async def check(response):
        media_type = response.headers.get("content-type", "").split(";")[0]
        if media_type not in JSON:
            return
        await response.aread()
        request = response.request
        known = of(request.method, request.url.path, str(response.status_code), media_type)
        if known is not None:
            fault = next(known.iter_errors(response.json()), None)
            assert fault is None, f"{request.method} {request.url.path} {response.status_code}: {fault}"

    return check
