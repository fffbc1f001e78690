"""The check of a release notices wrong files, code without a licence, and fields that are not filled in."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tools import release_check
from tools.docs_site.published import published

SOURCE = ["tidegate/__init__.py", "tidegate/py.typed", "tidegate/server/static/index.html"]
INFO = ["tidegate-1.dist-info/METADATA", "tidegate-1.dist-info/licenses/LICENSE"]
WHEEL = [*SOURCE, "tidegate/docs/settings.md", *INFO]


def test_a_right_wheel_has_no_faults() -> None:
    assert release_check.wheel_faults(WHEEL, SOURCE) == []


def test_each_missing_file_of_a_wheel_is_a_fault() -> None:
    for name in WHEEL:
        if not name.endswith("METADATA"):
            rest = [other for other in WHEEL if other != name]
            [fault] = release_check.wheel_faults(rest, SOURCE)
            assert fault == f"{name.rpartition('/')[2] if 'LICENSE' in name else name} missing from the wheel"


def test_a_test_or_a_stray_file_in_a_wheel_is_a_fault() -> None:
    for stray in ("tests/test_demo.py", "tidegate/notes.txt", "tidegate/server/stray.js"):
        [fault] = release_check.wheel_faults([*WHEEL, stray], SOURCE)
        assert fault.startswith(f"{stray} in the wheel")


def test_vendored_code_needs_a_licence_in_its_folder() -> None:
    right = [
        "a/vendor/x.mjs",
        "a/vendor/x.LICENSE.txt",
        "t-1.dist-info/licenses/src/a/vendor/x.LICENSE.txt",
        "a/own.js",
    ]
    assert release_check.vendored_faults(right) == []
    faults = release_check.vendored_faults(["a/vendor/x.mjs", "b/vendor/LICENSE"])
    assert faults[0].startswith("a/vendor/x.mjs unlicensed")
    assert faults[1].startswith("b/vendor/LICENSE not in the metadata")


def test_a_missing_file_of_an_sdist_is_a_fault() -> None:
    names = [f"tidegate-1/{name}" for name in release_check.SOURCE_MUST_HOLD]
    assert release_check.sdist_faults(names) == []
    assert release_check.sdist_faults(names[1:]) == ["LICENSE missing from the sdist"]


def test_fields_that_the_owner_fills_in_are_listed_until_they_are_there() -> None:
    assert len(release_check.owner_fields({"authors": [{"name": "Any"}]})) == 4
    urls = {"homepage": "a", "Repository": "b", "Issues": "c"}
    assert release_check.owner_fields({"urls": urls, "authors": [{"name": "Any", "email": "any@example.org"}]}) == []


def test_a_link_of_the_description_that_leads_nowhere_is_a_fault() -> None:
    page = "Name: tidegate\n\n[a](docs/a.md) [b](https://b.example) [c](#part)"
    assert release_check.description_faults(page) == ["docs/a.md in the description: no address"]


def test_the_published_readme_has_absolute_links_as_far_as_addresses_are_known() -> None:
    readme = "![p](docs/images/p.svg) [a](docs/a.md#part) [b](LICENSE) [c](#d) `[e](f)`"
    assert published(readme, {}) == " a b [c](#d) `[e](f)`"
    urls = {"Repository": "https://host.example/tidegate/"}
    assert published(readme, urls) == (
        "![p](https://host.example/tidegate/raw/main/docs/images/p.svg) "
        "[a](https://host.example/tidegate/blob/main/docs/a.md#part) "
        "[b](https://host.example/tidegate/blob/main/LICENSE) [c](#d) `[e](f)`"
    )
    urls["Documentation"] = "https://docs.example"
    assert "[a](https://docs.example/a/#part)" in published(readme, urls)
    assert "[a](https://docs.example/)" in published("[a](docs/index.md)", urls)
    assert release_check.description_faults(f"\n\n{published(readme, urls)}") == []


def test_a_licence_in_the_wheel_is_that_of_the_source(tmp_path: Path) -> None:
    wheel = tmp_path / "tidegate-1-py3-none-any.whl"
    inside = "tidegate-1.dist-info/licenses/LICENSE"
    right = (release_check.ROOT / "LICENSE").read_bytes()
    for text, faults in ((right, 0), (b"", 1), (right + b"x", 1)):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(inside, text)
        assert len(release_check.licence_faults(wheel)) == faults


def test_a_tag_names_the_version_of_the_wheel() -> None:
    name = "tidegate-1.2.0-py3-none-any.whl"
    assert release_check.tag_faults("", name) == release_check.tag_faults("v1.2.0", name) == []
    assert release_check.tag_faults("v1.3.0", name) == ["version 1.2.0 is not that of tag v1.3.0"]
