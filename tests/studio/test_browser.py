"""The page in a real browser, used as a person would. Screenshots go to build/studio, to be looked at.

Without a browser these tests are skipped, and a warning in pytest's summary says so; ANISODIFF_BROWSER names one.
"""

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from tests.studio.conftest import SMALL
from tests.studio.test_work import bomb

SHOTS = Path(__file__).parents[2] / "build" / "studio"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60_000


def browser_here() -> str | None:
    return os.environ.get("ANISODIFF_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


def left_out(words: str) -> NoReturn:
    """Skip, with a warning: pytest's summary shows warnings, and of skips only how many."""
    warnings.warn(words, stacklevel=2)
    pytest.skip(words)


@pytest.fixture(scope="module")  # closed before tests with event loops of their own
def browser():
    found = browser_here()
    if found is None:
        left_out("NO BROWSER: the studio's page was not tested; install chromium (apt-get install chromium)")
    try:
        from playwright import sync_api as playwright
    except ImportError:
        left_out("NO PLAYWRIGHT: the studio's page was not tested; pip install playwright")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, studio):
    """A page whose scripts fail nowhere and which asks no other host for anything."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    wrong, asked = [], []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None
    )
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(f"{studio.address}/")
    opened.wait_for_selector("body[data-ready]")
    yield opened
    context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((studio.address, "data:", "blob:"))] == []


def shot(page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("() => scrollTo(0, 0)")
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def answered(page) -> None:
    page.wait_for_selector("#d-speed:has-text('answered')")


def changed(page, act) -> str:
    """The command line after something was done."""
    before = page.input_value("#d-command")
    act()
    for _ in range(600):
        if page.input_value("#d-command") != before:
            return page.input_value("#d-command")
        page.wait_for_timeout(50)
    raise AssertionError("nothing changed")


def test_the_designer(page, tmp_path):
    answered(page)
    page.locator("[aria-label='α2, end']").scroll_into_view_if_needed()
    handle = page.locator("[aria-label='α2, end']").bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2

    def drag():
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y + 25, steps=4)
        page.mouse.up()

    line = changed(page, drag)
    ends = re.search(r"intensity=geometric\(([\d.e-]+), ([\d.e-]+)\)", line)
    assert float(ends.group(2)) < 303.4  # it was dragged down
    page.focus("[aria-label='α1, start']")
    line = changed(page, lambda: page.keyboard.press("ArrowUp"))
    assert "diffusivity=geometric(0.55, 0.001)" in line
    page.focus("[aria-label='λ2, value']")  # from ∞ down: the curve becomes finite, and the step follows
    line = changed(page, lambda: page.keyboard.press("PageDown"))
    assert "noise_anisotropy=50 --set 'step=tamed(dt=0.01)'" in line
    line = changed(page, lambda: page.select_option("[aria-label='Preset a']", "cartoon"))
    assert line.endswith("--process cartoon --size 64")  # nothing is changed by showing it
    labels = [field.input_value() for field in page.locator("[data-key]").all()]
    assert labels
    assert all(float(f"{float(text):.4g}") == float(text) for text in labels)
    changed(page, lambda: page.select_option("[aria-label='Preset a']", "anisotropic-gentle"))
    page.check("#d-compare")
    page.wait_for_selector("#d-shots figure:nth-child(2) figcaption:has-text('B: t =')")
    page.locator("#d-time").fill("9")
    levels = [
        re.search(
            r"σ/σ_data = ([\d.e-]+)", page.locator(f"#d-shots figure:nth-child({k}) figcaption").text_content()
        ).group(1)
        for k in (1, 2)
    ]
    assert np.log(float(levels[0])) == pytest.approx(np.log(float(levels[1])), abs=0.4)  # equal noise levels
    page.wait_for_selector("#d-judged div:nth-child(2) [data-forgets]")  # of both settings
    shot(page, "designer")
    page.uncheck("#d-compare")
    for kind, magic in (("png", b"\x89PNG"), ("gif", b"GIF8"), ("yaml", b"# anisodiff train"), ("save", b"\x89PNG")):
        with page.expect_download() as download:
            page.click(f"#d-{kind}")
        assert Path(download.value.path()).read_bytes().startswith(magic)
    page.click("#d-play")
    page.wait_for_timeout(300)
    page.click("#d-play")
    assert page.input_value("#d-time") != "9"
    assert page.locator("#message").is_hidden()


def test_mistakes_are_messages_in_the_page(page, tmp_path):
    answered(page)
    (tmp_path / "text.png").write_text("this is text")
    (tmp_path / "bomb.png").write_bytes(bomb())
    for name, words in (("text.png", "not an image"), ("bomb.png", "megapixels")):
        page.set_input_files("#d-file", tmp_path / name)
        page.wait_for_selector(f"#message:has-text('{words}')")
    page.fill("input[aria-label='α2, a']", "nan")
    page.press("input[aria-label='α2, a']", "Tab")
    page.wait_for_selector("#message:has-text('got nan')")
    shot(page, "mistake")
    page.fill("input[aria-label='α2, a']", "0.1")
    page.press("input[aria-label='α2, a']", "Tab")
    page.wait_for_selector("#message", state="hidden")
    Image.new("RGB", (90, 60), "orange").save(tmp_path / "photo.jpg")
    dropped = page.evaluate_handle(
        """(bytes) => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "photo.jpg", {type: "image/jpeg"})); return data; }""",
        list((tmp_path / "photo.jpg").read_bytes()),
    )
    page.dispatch_event("#d-shots", "drop", {"dataTransfer": dropped})  # anywhere on the panel
    page.wait_for_selector("#d-picture option:has-text('photo.jpg (60×90 pixels')", state="attached")


def test_generate_cancel_and_reproduce(page):
    page.click("#tab-generate")
    page.wait_for_selector("#g-facts:has-text('auto is')")
    page.fill("#g-n", "16")
    page.fill("#g-steps", "200")
    page.click("#g-go")
    page.wait_for_selector("#g-sides p:has-text('step')")
    page.click("#g-cancel")
    page.wait_for_selector("#g-sides p:has-text('cancelled')")
    page.fill("#g-n", "3")
    page.fill("#g-steps", "6")
    page.check("#g-compare")
    page.fill("#g-sampler-b", "ode")
    page.click("#g-go")
    page.wait_for_selector("#g-go:not([disabled])")
    page.wait_for_selector("#g-sides .card:nth-child(2) p:has-text('3 images')")
    first = page.locator("#g-sides .card:nth-child(1) figure[data-seed='1'] img").get_attribute("src")
    with page.expect_download() as download:
        page.locator("#g-sides .card:nth-child(1) button:has-text('Save all')").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    shot(page, "generate")
    page.uncheck("#g-compare")
    page.fill("#g-seed", "1")
    page.fill("#g-n", "1")
    page.click("#g-go")
    page.wait_for_selector("#g-sides .card:only-child p:has-text('1 images')")
    again = page.locator("#g-sides figure[data-seed='1'] img").get_attribute("src")
    assert close(page, first, again)  # the image of its seed, in another batch
    page.check("#g-compare")  # one side fails, the other one goes on
    page.fill("#g-sampler", "nosuch")
    page.fill("#g-seed", "5")
    page.click("#g-go")
    page.wait_for_selector("#message:has-text('unknown sampler')")
    page.wait_for_selector("#g-sides .card:nth-child(1) p:has-text('unknown sampler')")
    page.wait_for_selector("#g-sides .card:nth-child(2) p:has-text('1 images')")
    page.focus("#g-sampler")
    assert page.input_value("#g-sampler") == ""  # all of its list is offered
    page.keyboard.press("Tab")
    assert page.input_value("#g-sampler") == "nosuch"


def close(page, one: str, other: str) -> bool:
    from tests.studio.test_work import pixels

    return int(np.abs(pixels(one).astype(int) - pixels(other)).max()) <= 2


def test_strokes(page, tmp_path):
    page.click("#tab-strokes")
    page.wait_for_selector("#s-noised[src^='data:image/png']")
    canvas = page.locator("#s-canvas canvas.paint")
    box = canvas.bounding_box()

    def at(u, v):
        return box["x"] + u * box["width"], box["y"] + v * box["height"]

    def color(u, v):
        script = """([u, v]) => { const pen = document.querySelector('#s-canvas canvas.paint').getContext('2d');
        return [...pen.getImageData(u * 255, v * 255, 1, 1).data]; }"""
        return page.evaluate(script, [u, v])

    page.click("button[aria-label='Color sky']")
    page.locator("#s-size").fill("90")
    page.mouse.move(*at(0.1, 0.15))
    page.mouse.down()
    page.mouse.move(*at(0.9, 0.15), steps=6)
    page.mouse.up()
    assert color(0.5, 0.15)[:3] == [0x6D, 0xB3, 0xE8]
    page.click("button[aria-label='Color grass']")
    page.mouse.move(*at(0.1, 0.8))
    page.mouse.down()
    page.mouse.move(*at(0.9, 0.8), steps=6)
    page.mouse.up()
    assert color(0.5, 0.8)[:3] == [0x3B, 0x7D, 0x2C]
    page.click("#s-undo")
    assert color(0.5, 0.8)[:3] == [255, 255, 255]
    page.click("#s-redo")
    assert color(0.5, 0.8)[:3] == [0x3B, 0x7D, 0x2C]
    canvas.focus()
    page.keyboard.press("i")
    page.mouse.click(*at(0.5, 0.15))
    assert page.input_value("#s-color") == "#6db3e8"
    canvas.focus()
    page.keyboard.press("e")
    page.mouse.click(*at(0.5, 0.15))
    assert color(0.5, 0.15)[:3] == [255, 255, 255]
    page.keyboard.press("Control+z")
    page.keyboard.press("b")
    page.mouse.move(*at(0.5, 0.5))
    page.keyboard.press("Space")  # the keyboard paints, too
    assert color(0.5, 0.5)[:3] == [0x6D, 0xB3, 0xE8]
    before = page.get_attribute("#s-noised", "src")
    page.locator("#s-strength").fill("0.75")
    page.wait_for_selector("#s-noised-words:has-text('σ/σ_data = 3')")
    assert page.get_attribute("#s-noised", "src") != before
    page.fill("#s-n", "2")
    page.fill("#s-steps", "6")
    page.check("#s-compare")
    page.click("#s-go")
    page.wait_for_selector("#s-go:not([disabled])")
    page.wait_for_selector("#s-sides .card:nth-child(2) p:has-text('2 images')")
    page.locator("#s-sides .pick").first.click()
    page.locator("#s-split").fill("30")
    assert page.locator("#s-before").is_visible()
    shot(page, "strokes")
    # strokes of a photograph, a mask, and what stays outside of it
    page.uncheck("#s-compare")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)).save(tmp_path / "photo.png")
    page.fill("#s-colors", "3")
    page.set_input_files("#s-file", tmp_path / "photo.png")
    page.wait_for_selector("#s-picture option:has-text('photo.png')", state="attached")
    page.select_option("#s-way", "cartoon")
    page.click("#s-paint")
    page.wait_for_timeout(400)
    page.click("button[data-tool=mask]")
    page.mouse.click(*at(0.5, 0.5))
    page.fill("#s-n", "1")
    page.click("#s-go")
    page.wait_for_selector("#s-sides .card:only-child p:has-text('1 images')")
    assert "--mask mask.png" in page.input_value("#s-sides textarea")


def test_runs_start_stop_and_resume(page, studio):
    answered(page)
    changed(page, lambda: page.select_option("[aria-label='Preset a']", "heat"))
    page.locator("#d-settings input[type=number]").first.fill("1.5")
    changed(page, lambda: page.keyboard.press("Enter"))
    page.click("#d-train")
    page.wait_for_selector("#r-data option:has-text('kinds')", state="attached")
    page.wait_for_selector("#r-process option[value=heat]:checked", state="attached")
    assert page.input_value("#r-keys") == "size=64; T=1.5"
    page.fill("#r-name", "seen")
    page.select_option("#r-data", "kinds")
    page.fill("#r-images", "1000000")
    page.fill("#r-keys", "; ".join(f"{key}={value}" for key, value in {**SMALL, "classes": "auto"}.items()))
    page.click("#r-form button.main")
    page.wait_for_selector("#r-state:has-text('training')", timeout=120_000)
    page.wait_for_selector("#r-levels svg", timeout=120_000)
    page.focus("#r-list [data-name=seen]")
    seen = page.locator("#r-list tr:has([data-name=seen])").text_content()
    page.wait_for_selector(f"#r-list tr:has([data-name=seen]):not(:has-text('{seen}'))")  # the list has grown
    assert page.evaluate("() => document.activeElement.dataset.name") == "seen"
    page.click("#r-stop")
    page.wait_for_selector("#r-state:has-text('stopped')", timeout=120_000)
    page.click("#r-resume")
    page.wait_for_selector("#r-state:has-text('training')", timeout=120_000)
    page.wait_for_selector("#r-lines:has-text('continuing from')", timeout=120_000)
    page.click("#r-stop")
    page.wait_for_selector("#r-state:has-text('stopped')", timeout=120_000)
    page.click("#r-studies button")
    page.wait_for_selector("#r-page td:has-text('20.5')")
    page.fill("#r-filter", "heat 31")
    page.wait_for_selector("#r-page tr:has-text('20.5')", state="hidden")
    shot(page, "runs")
    page.click("#tab-generate")
    page.select_option("#g-model", "seen")
    page.select_option("#g-class", "noon")
    page.fill("#g-guidance", "2")
    page.fill("#g-steps", "3")
    page.click("#g-go")
    page.wait_for_selector("#g-sides p:has-text('4 images')")
    assert "--class noon --guidance 2" in page.input_value("#g-sides textarea")
    assert "noon, seed 0" in page.locator("#g-sides figure[data-seed='0']").text_content()
    page.select_option("#g-model", "cifar10-tiny")
    page.wait_for_selector("#g-class", state="hidden")


def test_results_and_the_page_itself(page, studio):
    page.click("#tab-results")
    page.wait_for_selector("#e-body h2:has-text('Overview')")
    page.click("#e-body button:has-text('the study')")
    page.wait_for_selector("#e-body h2:has-text('Comparison')")
    assert page.locator("#e-body b").count() == 0  # text of a page is text
    assert page.locator("#e-body svg.chart").count() == 1
    page.click("#e-body th button:has-text('FID')")
    page.click("#e-body th button:has-text('FID')")
    assert page.locator("#e-body tbody tr").first.text_content() == "heat31"
    shot(page, "results")
    page.focus("#tab-results")
    page.keyboard.press("Home")
    assert page.locator("#designer").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.locator("#generate").is_visible()
    page.click("#theme")
    assert page.evaluate("() => document.documentElement.dataset.theme") in ("dark", "light")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, [role=slider], img")].filter((one) =>
        !(one.getAttribute("aria-label") || one.labels?.length || one.alt || one.textContent.trim()
        || one.closest("label"))).map((one) => one.id || one.outerHTML)"""
    )
    assert [one for one in unnamed if one not in ("r-grid",)] == []
    page.set_viewport_size({"width": 375, "height": 720})
    for name in ("designer", "generate", "strokes", "runs", "results"):
        page.click(f"#tab-{name}")
        page.wait_for_timeout(100)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 375, name
        shot(page, f"phone-{name}")
