"""Looks, the keyboard, and text that would rather be markup."""

import json

import mock_server
from browser import Keys
from page_case import PHONE, Case, scripted

# Of each element with text of its own: contrast with what is behind it (WCAG 2.2, 1.4.3), and its text.
CONTRASTS = """
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return rgba('Canvas');
}
function luminance([r, g, b]) {
  const linear = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
const own = (e) => [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join('');
return [...document.querySelectorAll('body *')].filter((e) => own(e) && e.tagName !== 'SCRIPT' && e.checkVisibility())
  .map((e) => {
    const [a, b] = [luminance(rgba(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), own(e).slice(0, 40)];
  })"""

# Controls without a name for screen readers.
NAMELESS = """return [...document.querySelectorAll('button, a, input, textarea, select, canvas, dialog, summary')]
  .filter((e) => e.checkVisibility() && !(e.ariaLabel || e.labels?.length || e.textContent.trim() ||
    e.getAttribute('aria-labelledby') || e.getAttribute('aria-hidden'))).map((e) => e.outerHTML.slice(0, 80))"""


def too_wide(page):
    return page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


class Looks(Case):
    def fill(self):
        """One of everything, as far as the server allows."""
        for text in ("reason", "markdown", "tool both", "refuse 400") if self.server else ("Hello",):
            self.page.send(text)

    def test_a_phone_needs_no_scrolling_sideways(self):
        self.page.size(*PHONE)
        self.page.reload()
        self.fill()
        if self.server:
            self.page.send("w" * 300)
            self.page.send("hostile")
        self.assertLessEqual(too_wide(self.page), 0)
        for selector in ("#scroller", ".dock", "#main > header"):
            width = self.page.run("const e = document.querySelector(arguments[0]); return e.scrollWidth - e.clientWidth", selector)
            self.assertLessEqual(width, 0, selector)
        self.page.press("Conversations")
        self.page.until(lambda: self.page.shown("#new"), "the drawer")
        self.assertTrue(self.page.run("return document.getElementById('main').inert"))
        self.page.keys(Keys.ESCAPE)
        self.page.until(lambda: not self.page.shown("#new"), "the closed drawer")
        self.assertEqual(self.page.focused(), "menu")
        self.page.press("Engine")
        self.page.until(lambda: self.page.text("#running") != "–", "figures")
        self.assertLessEqual(too_wide(self.page), 0)
        self.page.keys(Keys.ESCAPE)
        self.page.until(lambda: not self.page.shown("#engine"), "the closed engine view")

    def test_dark_as_the_system_or_by_choice(self):
        background = "return getComputedStyle(document.body).backgroundColor"
        light = self.page.run(background)
        self.page.media(prefers_color_scheme="dark")
        dark = self.page.run(background)
        self.assertNotEqual(light, dark)
        self.page.press("Dark theme")
        self.assertEqual(self.page.run(background), light)
        self.page.reload()
        self.assertEqual(self.page.run(background), light)
        self.page.press("Dark theme")
        self.assertEqual(self.page.run(background), dark)

    def test_text_stands_out_from_what_is_behind_it(self):
        self.fill()
        self.page.press("Engine")
        self.page.until(lambda: self.page.text("#running") != "–", "figures")
        for scheme in ("light", "dark"):
            # Without motion, colours and opacities are what they are in the end.
            self.page.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
            found = self.page.run(CONTRASTS)
            self.assertGreater(len(found), 30)
            self.assertEqual([pair for pair in found if pair[0] < 4.5], [], scheme)
            self.page.press("Settings")
            self.assertEqual([pair for pair in self.page.run(CONTRASTS) if pair[0] < 4.5], [], scheme)
            self.page.press("Close the settings")

    def test_nothing_moves_when_motion_is_unwanted(self):
        moving = "return document.getAnimations().length"
        if self.server:
            self.page.send("slow", wait=False)
            self.page.until(lambda: self.page.run(moving) > 0, "some animation")
        self.page.media(prefers_reduced_motion="reduce")
        self.assertEqual(self.page.run(moving), 0)


class Keyboard(Case):
    def tab_to(self, name, most=40):
        """What had the focus on the way there."""
        seen = []
        for _ in range(most):
            self.page.keys(Keys.TAB)
            seen.append(self.page.focused())
            outline = self.page.run("""const e = document.activeElement;
                const outlined = e.id === 'prompt' ? document.getElementById('composer') : e;
                return e === document.body || getComputedStyle(outlined).outlineStyle !== 'none'""")
            self.assertTrue(outline, f"no outline on {seen[-1]}")
            if seen[-1] == name:
                return seen
        raise AssertionError(f"{name} not reached: {seen}")

    def test_everything_without_a_pointer(self):
        self.page.run("document.activeElement.blur()")
        self.assertEqual(self.tab_to("Skip to the message field"), ["Skip to the message field"])
        self.page.keys(Keys.ENTER)
        self.assertEqual(self.page.focused(), "prompt")
        self.page.keys("one")
        self.page.chord(Keys.SHIFT, Keys.ENTER)
        self.page.keys("two", Keys.ENTER)
        self.page.wait_for_answer()
        self.assertEqual(self.page.messages()[0], ["user", "one\ntwo"])
        self.assertEqual(self.page.focused(), "prompt")
        self.tab_to("open-settings")
        self.page.keys(Keys.ENTER)
        self.assertTrue(self.page.shown("#settings"))
        self.tab_to("set-temperature")
        self.page.keys(Keys.ESCAPE)
        self.assertFalse(self.page.shown("#settings"))
        self.assertEqual(self.page.focused(), "open-settings")
        self.tab_to("Regenerate")
        self.page.keys(Keys.ENTER)
        self.page.wait_for_answer()
        self.assertEqual(self.page.focused(), "prompt")
        self.tab_to("toggle-engine")
        self.page.keys(Keys.SPACE)
        self.tab_to("spans")

    def test_controls_have_names_and_answers_are_announced(self):
        self.page.send("Hello")
        self.page.press("Engine")
        self.page.press("Settings")
        self.assertEqual(self.page.run(NAMELESS), [])
        log = self.page.one("#transcript")
        self.assertEqual((log.get_attribute("role"), log.get_attribute("aria-live")), ("log", "polite"))
        self.page.until(lambda: self.page.text("#said") == "The answer is complete.", "the announcement")


@scripted
class Hostile(Case):
    def assert_harmless(self):
        made = "return document.querySelectorAll('.message :is(script, img, svg, iframe, b), .message [onclick]').length"
        self.assertEqual(self.page.run(made), 0)
        self.assertIsNone(self.page.run("return window.hacked"))
        links = self.page.run("return [...document.querySelectorAll('.message a')].map((a) => a.protocol + a.rel)")
        self.assertEqual([one for one in links if one != "https:noopener noreferrer nofollow"], [])

    def test_markup_in_an_answer_stays_text(self):
        self.page.send("hostile")
        self.assert_harmless()
        for text in ("<script>window.hacked = 1</script>", "[press me](javascript:window.hacked=1)",
                     '<b onclick="window.hacked=1">bold</b>', "<svg onload="):
            self.assertIn(text, self.page.messages()[1][1])
        self.page.reload()
        self.assert_harmless()

    def test_markup_elsewhere_stays_text(self):
        self.page.send("<img src=x onerror=window.hacked=1>")
        self.page.send("tool both")
        self.assert_harmless()
        self.assertEqual(self.page.text(".call h3 code"), "get_<b>tide</b>")
        self.assertEqual(self.page.text(".entry .title"), "<img src=x onerror=window.hacked=1>")

    def test_markdown_becomes_elements(self):
        self.page.send("markdown")
        self.assertEqual([e.text for e in self.page.all(".prose > ol > li > strong")], ["weir", "dam"])
        self.assertEqual(len(self.page.all(".prose > ol > li > ul > li")), 2)
        self.assertEqual(self.page.text(".code code"), mock_server.MARKDOWN.split("```")[1].removeprefix("python\n").strip("\n"))
        self.assertEqual(self.page.one(".prose a").get_attribute("href"), "https://en.wikipedia.org/wiki/Weir")
        self.assertEqual(len(self.page.all(".prose td")), 6)


@scripted
class Modules(Case):
    def in_page(self, script):
        """Runs a module's function bodies, which `return` or await, on a page without a policy."""
        self.page.driver.get(self.server.url + "blank")
        return self.page.driver.execute_async_script(
            f"const done = arguments[0]; (async () => {{ {script} }})().then(done, (e) => done('failed: ' + e))")

    def test_events_come_out_wherever_the_stream_is_cut(self):
        self.assertEqual(self.in_page(r"""
            const { eventsOf } = await import('/src/sse.js');
            const text = '\uFEFF: hi\n\ndata: a\u6c34\ndata:b\r\n\r\nevent: error\rdata: {"x": "\ud83c\udf0a"}\r\rid: 3\n\n'
              + 'data: p\r\ndata: q\r\n\r\ndata\n\ndata: last\n\ndata: never ended\n';
            const bytes = new TextEncoder().encode(text);
            async function parse(pieces) {
              const body = new ReadableStream({ start(c) { pieces.forEach((p) => c.enqueue(p)); c.close(); } });
              const out = [];
              for await (const event of eventsOf(body)) out.push(event.type + '=' + event.data);
              return out.join('|');
            }
            const whole = await parse([bytes]);
            for (let i = 0; i <= bytes.length; ++i) {
              for (let j = i; j <= bytes.length; j += 7) {
                const cut = await parse([bytes.slice(0, i), bytes.slice(i, j), bytes.slice(j)]);
                if (cut !== whole) return `cut at ${i}, ${j}: ${cut}`;
              }
            }
            return whole;"""), "message=a水\nb|error={\"x\": \"🌊\"}|message=p\nq|message=|message=last")

    def test_growing_markdown_ends_as_the_whole_does(self):
        self.assertEqual(self.in_page("""
            const { Markdown } = await import('/src/markdown.js');
            const text = arguments_text;
            const grown = new Markdown(), whole = new Markdown();
            for (let i = 1; i <= text.length; ++i) grown.update(text.slice(0, i));
            whole.update(text);
            return grown.node.outerHTML === whole.node.outerHTML && whole.node.childElementCount > 5;"""
            .replace("arguments_text", json.dumps(mock_server.MARKDOWN + mock_server.HOSTILE))), True)

    def test_no_text_takes_long(self):
        self.assertLess(self.in_page("""
            const { Markdown } = await import('/src/markdown.js');
            const texts = [' **a', '`', '[', '*a ', '> ', '- ', '_a', '~~a ', '|-', '# ', '``` ', '1. ', '[a](http://'];
            const begin = performance.now();
            for (const text of texts) new Markdown().update(text.repeat(10000));
            for (const text of texts) new Markdown().update((text + '\\n').repeat(1000));
            return performance.now() - begin;"""), 15000)
