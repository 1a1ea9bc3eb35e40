from playwright.sync_api import expect
from tests.browser.visit import Visit

def test_overview(visit: Visit) -> None:
    page = visit.page()
    page.goto("/")
    expect(page.locator("#device-desk")).to_contain_text("Lent")
    assert page.evaluate("1+1")==2
    from pathlib import Path
    page.evaluate(Path("tests/browser/vendor/axe.min.js").read_text())
    print(page.evaluate("axe.run(document,{resultTypes:['violations']}).then(r=>r.violations.length)"))
