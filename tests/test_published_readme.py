"""The README of the package index has links that work there."""

from __future__ import annotations

from tools.docs_site.published import published


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
