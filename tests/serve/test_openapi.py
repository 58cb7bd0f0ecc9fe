"""The document that others build clients from."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

PATHS = {
    "/v1/localize": "post",
    "/v1/localize/batch": "post",
    "/v1/embed": "post",
    "/v1/references": "post",
    "/v1/maps": "get",
    "/v1/map": "get",
    "/v1/map/references": "get",
    "/v1/map/calibration": "get",
    "/v1/map/risk": "get",
    "/v1/references/{id}": "get",
    "/v1/references/{id}/thumbnail": "get",
    "/v1/demo/queries": "get",
    "/v1/demo/queries/{index}/image": "get",
    "/healthz": "get",
    "/readyz": "get",
    "/metrics": "get",
}


@pytest.fixture
def document(client: TestClient) -> dict:
    return client.get("/openapi.json").json()


def test_all_addresses_are_described(document: dict) -> None:
    assert {path: next(iter(ways)) for path, ways in document["paths"].items()} == PATHS
    for path, method in PATHS.items():
        way = document["paths"][path][method]
        assert way["summary"]
        assert way["description"]
        for status, answer in way["responses"].items():
            if int(status) >= 400:
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorOut"), (
                    path,
                    status,
                )


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
    assert (
        "example"
        in document["paths"]["/v1/localize"]["post"]["responses"]["200"]["content"]["application/json"]
    )


def test_no_page_of_another_host_is_offered(client: TestClient) -> None:
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


def test_the_example_answer_is_one(document: dict, client: TestClient) -> None:
    from kappaplace.client import localization_of
    from kappaplace.serve.schemas import LocalizationOut

    content = document["paths"]["/v1/localize"]["post"]["responses"]["200"]["content"]
    example = content["application/json"]["example"]
    LocalizationOut.model_validate(example, strict=True)
    assert localization_of(example).sentence == example["sentence"]
