"""The document that others build clients from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from kappaplace.serve import schemas
from kappaplace.serve.problems import CODES, SPECIAL

NAMED = {
    "/v1/localize": ("post", "/localize"),
    "/v1/localize/batch": ("post", "/localize/batch"),
    "/v1/embed": ("post", "/embed"),
    "/v1/references": ("post", "/references"),
    "/v1/labels": ("post", "/labels"),
    "/v1/map": ("get", ""),
    "/v1/map/references": ("get", "/references"),
    "/v1/map/calibration": ("get", "/calibration"),
    "/v1/map/risk": ("get", "/risk"),
    "/v1/map/drift": ("get", "/drift"),
    "/v1/references/{id}": ("get", "/references/{id}"),
    "/v1/references/{id}/thumbnail": ("get", "/references/{id}/thumbnail"),
}
"""Routes of a map, and where they are below ``/v1/maps/{name}``."""
PATHS = {
    **{path: method for path, (method, _) in NAMED.items()},
    "/v1/maps": "get",
    "/v1/demo/queries": "get",
    "/v1/demo/queries/{index}/image": "get",
    "/healthz": "get",
    "/readyz": "get",
    "/metrics": "get",
}


@pytest.fixture
def document(client: TestClient) -> dict:
    return client.get("/openapi.json").json()


def operations(document: dict) -> list[tuple[str, str, dict]]:
    return [(path, method, way) for path, ways in document["paths"].items() for method, way in ways.items()]


def test_all_addresses_are_described(document: dict) -> None:
    wanted = set(PATHS.items())
    wanted |= {(f"/v1/maps/{{name}}{end}", method) for method, end in NAMED.values()}
    wanted |= {("/v1/labels", "get"), ("/v1/maps/{name}/labels", "get")}
    assert {(path, method) for path, method, _ in operations(document)} == wanted
    for path, _, way in operations(document):
        assert way["summary"]
        assert way["description"]
        assert ("{name}" in path) == any(each["name"] == "name" for each in way.get("parameters", ()))
        for status, answer in way["responses"].items():
            if int(status) >= 400 and status != "422":
                shape = answer["content"]["application/problem+json"]["schema"]
                assert shape["$ref"].endswith("/ProblemOut"), (path, status)


def test_references_inside_the_document_can_be_followed(document: dict) -> None:
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    assert "#/$defs" not in text


def test_bodies_come_in_every_form_with_examples(document: dict) -> None:
    for path in ("/v1/localize", "/v1/localize/batch", "/v1/embed", "/v1/references"):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        assert {"multipart/form-data", "application/json"} <= set(content)
        assert "example" in content["application/json"]


def test_tokens_are_described(document: dict) -> None:
    schemes = document["components"]["securitySchemes"]
    assert {name: scheme["scheme"] for name, scheme in schemes.items()} == {
        "readToken": "bearer",
        "writeToken": "bearer",
    }
    assert document["paths"]["/v1/references"]["post"]["security"] == [{"writeToken": []}]
    assert document["paths"]["/v1/localize"]["post"]["security"] == [{"readToken": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]


def test_words_with_few_values_are_enums(document: dict) -> None:
    shapes = document["components"]["schemas"]
    decisions = shapes["MatchOut"]["properties"]["decision"]["anyOf"][0]
    assert decisions["enum"] == ["accept", "doubtful", "reject"]
    assert shapes["RiskOut"]["properties"]["on"]["enum"] == ["uncertainty", "probability"]
    assert shapes["LabelBody"]["properties"]["label"]["enum"] == ["right", "wrong", "unknown"]


def test_every_response_has_an_example_that_is_one(document: dict) -> None:
    shapes = document["components"]["schemas"]
    answers = {
        part["schema"]["$ref"].rpartition("/")[2]
        for _, _, way in operations(document)
        for answer in way["responses"].values()
        for kind, part in answer.get("content", {}).items()
        if "json" in kind and "$ref" in part.get("schema", {})
    } - {"HTTPValidationError"}
    assert len(answers) > 12
    for name in answers:
        (example,) = shapes[name]["examples"]
        model: Any = getattr(schemas, name)
        TypeAdapter(model).validate_python(example, strict=True)
        assert set(example) <= set(model.model_fields), name  # nothing that the schema does not have


def test_the_example_answer_is_one() -> None:
    from kappaplace.client import localization_of

    example = schemas.example_of("LocalizationOut")
    assert isinstance(example, dict)
    assert localization_of(example).sentence == example["sentence"]


def test_the_page_of_the_api_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text.replace("<!doctype html>", "")
    assert client.get("/redoc").status_code == 404
    assert client.get("/static/docs.js").status_code == 200


def test_every_code_has_a_place_on_the_page(client: TestClient) -> None:
    codes = client.get("/openapi.json").json()["x-error-codes"]
    assert set(codes) == {code for code, _ in CODES.values()} | set(SPECIAL)
