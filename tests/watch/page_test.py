"""Looks at the page of `eps dashboard` in Chromium while a job trains: light and dark, wide and 375
pixels, with the keyboard, and after its servers and the program are gone. Writes screenshots.

Arguments: the path of eps, and a folder for the screenshots. Needs Debian's chromium and the Python
package playwright (.ci/long page)."""

import os
import re
import shutil
import sys
import tempfile
import unittest

from playwright.sync_api import sync_playwright

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import watched_job  # noqa: E402 # pylint: disable=wrong-import-position

EPS = SHOTS = None
CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 60_000
# Contrast of text against its ground: WCAG 2.2, 1.4.3 (AA).
LEAST_CONTRAST = 4.5
CONTRAST = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map(Number).slice(0, 3).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return light(color);
    }
    return 1;
  };
  let worst = ["", 99];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.namespaceURI.includes("svg") || e.closest("noscript, script")) continue;
    const [a, b] = [light(getComputedStyle(e).color), ground(e)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[1]) worst = [e.outerHTML.slice(0, 80), contrast];
  }
  return worst;
}"""


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-page-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.job = watched_job.WatchedJob(EPS, cls.folder)
        cls.addClassCleanup(cls.job.end)
        cls.job.submit("first", 100_000, **{"training.clip": "lagged"})
        cls.job.drive("20ms")
        cls.job.wait_until(lambda: (cls.job.state()["last_step"] or {"step": 0})["step"] > 20)
        os.makedirs(SHOTS, exist_ok=True)
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def open(self, width=1280, scheme="light"):
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.addCleanup(page.close)
        self.errors = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto(self.job.url)
        page.wait_for_selector("#heat td.cell", timeout=PATIENCE_MS)
        page.wait_for_selector("#loss path.train", timeout=PATIENCE_MS)
        return page

    def shoot(self, page, name):
        page.screenshot(path=os.path.join(SHOTS, name + ".png"), full_page=True)

    def test_1_the_page_is_live_in_light_and_dark(self):
        for scheme in ("light", "dark"):
            page = self.open(scheme=scheme)
            self.assertEqual(page.inner_text("#link"), "live")
            self.assertRegex(page.inner_text("#job"), "first on 127.0.0.1")
            for part in ("Step", "Loss", "Tokens / s", "Workers"):
                self.assertIn(part, page.inner_text("#summary"))
            self.assertEqual(page.locator("#servers tbody tr").count(), 2)
            self.assertIn("RUNNING", page.inner_text("#jobs"))
            before = page.inner_text("#loss-text")
            page.wait_for_function(
                "(old) => document.getElementById('loss-text').textContent !== old", arg=before,
                timeout=PATIENCE_MS)
            # Layers are updated one after the other; a look sees that now and then.
            page.wait_for_function("""() => new Set([...document.querySelectorAll("#heat td.cell")]
                .map((cell) => cell.textContent)).size > 1""", polling=50, timeout=PATIENCE_MS)
            element, contrast = page.evaluate(CONTRAST)
            self.assertGreaterEqual(contrast, LEAST_CONTRAST, element)
            self.shoot(page, scheme)
            self.assertEqual(self.errors, [])

    def test_2_a_narrow_page_fits(self):
        page = self.open(width=375)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 375)
        self.shoot(page, "narrow")
        self.assertEqual(self.errors, [])

    def test_3_the_keyboard_reaches_everything(self):
        page = self.open()
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || "
                                         "document.activeElement.getAttribute('aria-labelledby')"))
        for part in ("loss", "heat-title", "servers-title", "waits-title", "jobs-title"):
            self.assertIn(part, reached)
        page.focus("#loss")
        page.keyboard.press("Home")
        self.assertRegex(page.inner_text("#loss-text"), r"^step 1: loss ")
        page.keyboard.press("ArrowRight")
        self.assertRegex(page.inner_text("#loss-text"), r"^step 2: loss ")
        self.shoot(page, "keyboard")
        page.keyboard.press("Escape")
        self.assertNotRegex(page.inner_text("#loss-text"), r"^step 2: loss ")
        box = page.locator("#loss").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 50)
        self.assertEqual(page.locator("#loss line.cursor").count(), 1)
        self.assertEqual(self.errors, [])

    def test_4_a_dead_server_and_a_dead_program(self):
        page = self.open()
        self.job.servers[1].kill()
        page.wait_for_selector("#servers td.bad", timeout=PATIENCE_MS)
        page.wait_for_function("""() => document.getElementById('events').textContent
            .includes('the server does not answer')""", timeout=PATIENCE_MS)
        self.shoot(page, "dead-server")
        self.job.serve(1)
        page.wait_for_function("""() => document.getElementById('events').textContent
            .includes('the server answers again')""", timeout=PATIENCE_MS)
        dashboard = next(p for p in self.job.processes if "dashboard" in p.args)
        dashboard.kill()
        page.wait_for_selector("#link.bad", timeout=PATIENCE_MS)
        self.assertTrue(re.match(r"no answer for \d+s", page.inner_text("#link")))
        self.shoot(page, "no-program")


if __name__ == "__main__":
    SHOTS, EPS = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
