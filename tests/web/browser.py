"""Headless Chromium on the web page, as tests use it."""

import os
import shutil
import time

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BROWSERS = ["chromium", "chromium-browser", "google-chrome"]


def programs():
    """Paths of browser and driver; None for what is missing."""
    return next(filter(None, map(shutil.which, BROWSERS)), None), shutil.which("chromedriver")


class Browser:
    def __init__(self, url, patience_s):
        browser, driver = programs()
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        options.add_argument("--headless=new")
        options.add_argument("--disable-dev-shm-usage")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # which Chromium demands of root
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(60)
        self.url, self.patience_s = url, patience_s

    def close(self):
        self.driver.quit()

    # --- the window

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def media(self, **features):
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def fresh(self, settings="{}"):
        """The page as a new visitor has it, with stored settings."""
        self.driver.get(self.url)
        self.run("localStorage.clear(); sessionStorage.clear();"
                 "addEventListener('pagehide', () => { localStorage.clear();"
                 "  localStorage.setItem('weir.settings', arguments_); });".replace("arguments_", repr(settings)))
        self.reload()

    def reload(self):
        self.driver.get(self.url)

    # --- looking

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """All text of the last such element, shown or folded away; '' without one."""
        return self.run("return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''", selector)

    def shown(self, selector):
        return any(element.is_displayed() for element in self.all(selector))

    def until(self, condition, what, patience_s=None):
        end = time.monotonic() + (patience_s or self.patience_s)
        while True:
            try:
                value = condition()
            except StaleElementReferenceException:
                value = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain: {what}")
            time.sleep(0.03)

    def focused(self):
        return self.run("const e = document.activeElement; return e.id || e.textContent.trim() || e.tagName")

    # --- doing

    def keys(self, *keys):
        """To whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *keys):
        """Keys of which the first is held down."""
        ActionChains(self.driver).key_down(keys[0]).send_keys(*keys[1:]).key_up(keys[0]).perform()

    def press(self, name, within="body"):
        """The last button of this name that is shown; once more when the page drew it anew meanwhile."""
        for last in (False, False, True):
            try:
                return self.press_once(name, within)
            except StaleElementReferenceException:
                if last:
                    raise

    def press_once(self, name, within):
        button = self.run("""return [...document.querySelectorAll(arguments[0] + ' button')].filter((one) =>
            one.checkVisibility() && (one.textContent.trim() === arguments[1] || one.ariaLabel === arguments[1])).at(-1)""",
                          within, name)
        if button is None:
            raise AssertionError(f"no button {name!r}")
        self.run("arguments[0].scrollIntoView({block: 'nearest'})", button)
        button.click()

    def send(self, text, wait=True):
        self.one("#prompt").send_keys(text, Keys.ENTER)
        if wait:
            self.wait_for_answer()

    def running(self):
        return self.text("#send") == "Stop"

    def wait_for_answer(self):
        self.until(lambda: not self.running(), "the answer's end")

    def messages(self):
        """[kind, text] of each, kind user or answer."""
        return self.run("""return [...document.querySelectorAll('.message')].map((m) => m.classList.contains('user')
            ? ['user', m.querySelector('.said')?.textContent ?? ''] : ['answer', m.querySelector('.prose').textContent])""")
