"""Questions with images: the same answers as in process, in all three ways to send them."""

from __future__ import annotations

import base64
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

from kappaplace.client import localization_of
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.maps import LocalizeOptions, MapStore, PlaceMap
from kappaplace.models.frozen import FrozenEncoder
from tests.serve.conftest import Serve, assert_problem, encoded


def same(answer: dict, direct) -> None:
    """Batches round otherwise than single images, in the last digits."""
    assert [m["name"] for m in answer["matches"]] == [m.name for m in direct.matches]
    assert answer["decision"] == direct.decision
    for key in ("kappa", "uncertainty", "probability", "inside"):
        assert answer[key] == pytest.approx(getattr(direct, key), rel=1e-4)
    for ours, theirs in zip(answer["matches"], direct.matches, strict=True):
        assert ours["similarity"] == pytest.approx(theirs.similarity, abs=1e-5)
        assert ours["decision"] == theirs.decision
    assert (answer["pose"] is None) == (direct.pose is None)
    if direct.pose is not None:
        assert answer["pose"]["x"] == pytest.approx(direct.pose.x, abs=1e-2)


def test_a_form_json_and_a_bare_file_give_the_answer_of_the_map(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    data = query_files[0].read_bytes()
    text = base64.b64encode(data).decode()
    direct = opened.localize(str(query_files[0]), k=5)
    sent = [
        client.post("/v1/localize", files={"image": ("q.png", data)}, data={"k": "5"}),
        client.post("/v1/localize", json={"image": text, "k": 5}),
        client.post("/v1/localize", json={"image": f"data:image/png;base64,{text}", "k": 5}),
        client.post("/v1/localize?k=5", content=data, headers={"content-type": "image/png"}),
    ]
    for answer in sent:
        assert answer.status_code == 200, answer.text
        same(answer.json(), direct)
    found = sent[0].json()
    assert found["map"] == "town"
    assert found["sentence"] == direct.sentence
    assert "image" not in found["matches"][0]
    assert client.get(found["matches"][0]["thumbnail"]).headers["content-type"] == "image/jpeg"


def test_a_batch_is_answered_in_its_order(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    files = [("image", (path.name, path.read_bytes())) for path in query_files[:6]]
    answers = client.post("/v1/localize/batch", files=files, data={"k": "3"}).json()["answers"]
    for answer, direct in zip(answers, opened.localize(list(map(str, query_files[:6])), 3), strict=True):
        same(answer, direct)
    texts = [base64.b64encode(path.read_bytes()).decode() for path in query_files[:2]]
    assert client.post("/v1/localize/batch", json={"images": texts, "k": 3}).json()["answers"][1][
        "probability"
    ] == pytest.approx(answers[1]["probability"], rel=1e-4)


def test_near_searches_only_there(client: TestClient, opened: PlaceMap, query_files: list[Path]) -> None:
    data, at = query_files[0].read_bytes(), opened.store.positions[0]
    near = f"{at[0]},{at[1]},30"
    found = client.post("/v1/localize", files={"image": data}, data={"near": near}).json()
    assert found["matches"]
    for match in found["matches"]:
        assert np.hypot(match["x"] - at[0], match["y"] - at[1]) <= 30
    none = client.post("/v1/localize", files={"image": data}, data={"near": "0,0,1"}).json()
    assert none["matches"] == []
    assert none["pose"] is None
    assert none["uncertainty"] is None


def test_an_accepted_risk_decides_anew(client: TestClient, query_files: list[Path]) -> None:
    order = ["accept", "doubtful", "reject"]
    files = [("image", (path.name, path.read_bytes())) for path in query_files]
    before: list[int] = []
    for risk in (0.001, 0.05, 0.3, 0.9):
        answers = client.post(f"/v1/localize/batch?max_risk={risk}", files=files).json()["answers"]
        levels = [order.index(answer["decision"]) for answer in answers]
        assert all(
            now <= then for now, then in zip(levels, before, strict=False)
        )  # a higher risk accepts more
        assert all(answer["max_risk"] == risk for answer in answers)
        for answer in answers:
            decisions = [order.index(match["decision"]) for match in answer["matches"]]
            assert decisions[0] == order.index(answer["decision"])
            assert min(decisions) == decisions[0]
        before = levels
    assert before.count(0) > 0


def test_embeddings_are_those_of_the_map(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    files = [("image", (path.name, path.read_bytes())) for path in query_files[:3]]
    found = client.post("/v1/embed", files=files).json()
    direct = opened.embed([str(path) for path in query_files[:3]])
    np.testing.assert_allclose(found["descriptors"], direct.descriptor, atol=1e-5)
    np.testing.assert_allclose(found["kappa"], direct.kappa, rtol=1e-4)
    assert found["model"] == opened.manifest.model.fingerprint


class CrossImage(nn.Module):
    """An encoder whose descriptors depend on the other images of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.sizes = nn.Conv2d(3, 12, 8, 8), list[int]()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(images))
        alone = self.conv(images).amax((2, 3))
        return alone + alone.mean(0)


def test_queries_of_different_users_are_never_in_one_batch_of_a_cross_image_encoder(
    serve: Serve, served_folder: Path, query_files: list[Path], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    encoder = CrossImage()
    model = FrozenEncoder(encoder, cross_image=True, preprocessing=Preprocessing(32, "exact")).eval()
    table = PlaceImages.open(served_folder / "val.parquet")
    made = PlaceMap.build(table, tmp_path / "cross.map", model)
    batches: list[int] = []
    client = serve({"cross": made}, window=1.0)
    served = client.app.state.served["cross"]
    served.batcher.report = batches.append
    images = query_files[:6]
    alone = [made.embed([str(path)]).descriptor[0] for path in images]

    def ask(path: Path) -> list[float]:
        files = {"image": (path.name, path.read_bytes(), "image/png")}
        return client.post("/v1/embed", files=files).json()["descriptors"][0]

    with ThreadPoolExecutor(len(images)) as pool:
        answers = list(pool.map(ask, images))
    np.testing.assert_allclose(answers, alone, atol=1e-6)
    assert max(batches) > 1  # requests of several clients were answered together
    assert set(encoder.sizes) == {1}  # but no pass saw two of their images


def test_a_large_jpeg_is_decoded_as_from_a_file(
    client: TestClient, opened: PlaceMap, query_files: list[Path], tmp_path: Path
) -> None:
    from PIL import Image

    file = tmp_path / "large.jpg"
    Image.open(query_files[0]).convert("RGB").resize((800, 600)).save(file, quality=90)
    found = client.post("/v1/localize", files={"image": file.read_bytes()}).json()
    same(found, opened.localize(str(file)))


@pytest.mark.parametrize(
    ("send", "status", "words"),
    [
        ({"content": b"", "headers": {"content-type": "image/png"}}, 422, "no image"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "multipart"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not JSON"),
        ({"json": [1]}, 422, "object"),
        ({"json": {"image": 3}}, 422, "base64"),
        ({"json": {"image": "§§"}}, 422, "base64"),
        ({"json": {"k": 3}}, 422, "no image"),
        ({"json": {"image": "AAAA", "kk": 3}}, 422, "kk"),
        ({"json": {"image": "AAAA", "k": 0}}, 422, "k:"),
        ({"json": {"image": "AAAA", "k": 1000}}, 422, "at most 100"),
        ({"json": {"image": "AAAA", "max_risk": 1.0}}, 422, "max_risk"),
        ({"json": {"image": "AAAA", "near": [1, 2]}}, 422, "near"),
        ({"files": {"image": b"not an image"}, "data": {"near": "1,nan,3"}}, 422, "near"),
        ({"files": {"image": encoded()}, "data": {"near": "1e308,1e308,1e308"}}, 422, "near"),
        ({"files": {"image": encoded()}, "data": {"k": "9" * 4000}}, 422, "k: input should be"),
        ({"files": {"image": b"not an image"}}, 422, "not an image"),
        ({"files": {"photo": b"x"}}, 422, "`image`"),
        ({"files": [("image", b"x"), ("image", b"y")]}, 413, "one image"),
        ({"json": {"image": "AAAA", "map": "atlantis"}}, 404, "atlantis"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, "form"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "form"),
    ],
)
def test_bad_requests_are_told_in_a_sentence(client: TestClient, send: dict, status: int, words: str) -> None:
    answer = client.post("/v1/localize", **send)
    assert answer.status_code == status, answer.text
    assert_problem(answer)
    assert words in answer.json()["error"]


def test_one_bad_image_of_a_batch_is_named(client: TestClient, query_files: list[Path]) -> None:
    files = [("image", query_files[0].read_bytes()), ("image", b"nothing")]
    answer = client.post("/v1/localize/batch", files=files)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("Image 1:")


def test_several_maps_by_name(
    serve: Serve, opened: PlaceMap, served_folder: Path, query_files: list[Path]
) -> None:
    other = PlaceMap.open(served_folder / "town.map")
    client = serve({"town": opened, "other town": other})
    assert client.get("/v1/maps").json()["maps"] == ["town", "other town"]
    data = query_files[0].read_bytes()
    for name in ("town", "other town"):
        found = client.post("/v1/localize", files={"image": data}, data={"map": name}).json()
        assert found["map"] == name
        assert client.get(found["matches"][0]["thumbnail"]).status_code == 200
        assert client.get("/v1/map", params={"map": name}).json()["name"] == name


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "PPM"])
def test_formats_that_are_not_allowed_are_refused(client: TestClient, kind: str) -> None:
    answer = client.post("/v1/localize", files={"image": encoded(kind)})
    assert answer.status_code == 422
    assert "JPEG, PNG, WEBP" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_formats_that_are_allowed_are_read(client: TestClient, kind: str) -> None:
    assert client.post("/v1/localize", files={"image": encoded(kind)}).status_code == 200


def test_too_many_pixels_are_refused_before_they_are_decoded(serve: Serve) -> None:
    client = serve(max_pixels=1000)
    answer = client.post("/v1/localize", files={"image": encoded(size=(40, 30))})
    assert answer.status_code == 422
    assert "40×30" in answer.json()["error"]


def test_a_map_without_its_photos_is_re_ranked_by_its_patches(
    serve: Serve, opened: PlaceMap, query_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = opened.localize(str(query_files[0]), rerank=5)
    shutil.copytree(opened.folder, tmp_path / "moved.map")
    moved = PlaceMap.open(tmp_path / "moved.map")
    monkeypatch.setattr(MapStore, "image_path", lambda *_: "")  # no photo can be read
    answer = serve({"moved": moved}).post(
        "/v1/localize?rerank=5", content=query_files[0].read_bytes(), headers={"Content-Type": "image/png"}
    )
    assert answer.status_code == 200
    found = answer.json()
    assert found["signals"]["patches"] == pytest.approx(direct.signals["patches"], abs=1e-6)
    assert [match["name"] for match in found["matches"]] == [match.name for match in direct.matches]


def test_images_of_a_session_are_fused_in_their_order(serve, opened, query_files):
    client = serve(batch_size=4)
    data = [file.read_bytes() for file in query_files[:5]]
    files = [("image", ("q.png", part, "image/png")) for part in data]
    batch = client.post("/v1/localize/batch", files=files, data={"session": "bus-1", "rerank": "0"})
    assert batch.status_code == 200, batch.text
    single = [
        client.post("/v1/localize", files=[file], data={"session": "bus-2", "rerank": "0"}).json()
        for file in files
    ]
    alone = [client.post("/v1/localize", files=[file], data={"rerank": "0"}).json() for file in files]
    fused = [answer["probability"] for answer in batch.json()["answers"]]
    assert fused == pytest.approx([answer["probability"] for answer in single], abs=1e-4)
    assert fused != pytest.approx([answer["probability"] for answer in alone], abs=1e-3)
    assert not any(answer["guaranteed"] for answer in single)
    assert "fused" in single[-1]["notes"][-1]
    again = client.post("/v1/localize", files=[files[0]], data={"session": "bus-3", "rerank": "0"}).json()
    assert again["probability"] == pytest.approx(fused[0], abs=1e-4)  # another session knows nothing of them


def test_a_session_has_an_id_and_one_risk(serve, query_files):
    client = serve()
    files = [("image", ("q.png", query_files[0].read_bytes(), "image/png"))]
    assert client.post("/v1/localize", files=files, data={"session": "a b"}).status_code == 422
    both = client.post("/v1/localize", files=files, data={"session": "a", "max_risk": "0.1"})
    assert both.status_code == 422
    assert "max_risk cannot be used with session" in both.text
    sets = client.post("/v1/localize", files=files, data={"session": "a", "coverage": "0.9"})
    assert sets.status_code == 422
    assert "coverage and group cannot be used with session" in sets.text


def test_idle_sessions_start_again(opened, monkeypatch):
    from kappaplace.serve import sessions

    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    states = sessions.Sessions(opened)
    first = states.of("a")
    assert states.of("a") is first
    states.of("b")
    states.of("c")
    assert states.of("a") is not first
    now = states.of("c")
    monkeypatch.setattr(sessions, "IDLE_SECONDS", -1.0)
    assert states.of("c") is not now


def test_evidence_is_returned_on_request(
    client: TestClient, opened: PlaceMap, query_files: list[Path]
) -> None:
    data = query_files[0].read_bytes()
    answer = client.post(
        "/v1/localize?evidence=true", content=data, headers={"content-type": "image/png"}
    ).json()
    direct = opened.match_evidence(str(query_files[0]), answer["matches"][0]["reference"])
    expected = np.column_stack([direct.query, direct.reference, direct.weights])
    assert np.array(answer["evidence"]) == pytest.approx(expected, abs=1e-3)
    plain = client.post("/v1/localize", files={"image": ("q.png", data)}).json()
    assert plain["evidence"] is None


def test_candidate_sets_over_http(client: TestClient, opened: PlaceMap, query_files: list[Path]) -> None:
    data = query_files[0].read_bytes()
    answer = client.post("/v1/localize?coverage=0.3", content=data, headers={"content-type": "image/png"})
    assert answer.status_code == 200, answer.text
    values = answer.json()["candidates"]
    own = localization_of(answer.json()).candidates
    assert own is not None
    assert values["coverage"] == own.coverage == 0.3
    expected = opened.localize(data, LocalizeOptions(coverage=0.3)).candidates
    assert expected is not None
    assert [place.name for place in own.places] == [place.name for place in expected.places]
    assert own.unmapped == expected.unmapped
    plain = client.post("/v1/localize", content=data, headers={"content-type": "image/png"}).json()
    assert plain["candidates"] is None
    assert localization_of(plain).candidates is None
    bad = client.post("/v1/localize?coverage=1.5", content=data, headers={"content-type": "image/png"})
    assert bad.status_code == 422
