"""The front page: what it must say, and that everybody can read it."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from replicata.errors import UsageError, VerificationError
from replicata.workflow import report_text
from replicata.workflow.files import pretty_json
from replicata.workflow.receipts import Receipt
from replicata.workflow.report import write_report
from tests.workflow import report_data as data

CSS = Path(report_text.__file__).with_name("templates") / "report.css"
VOID = {"meta", "img", "rect", "use", "path", "circle", "br", "link"}


class Page(HTMLParser):
    """A page as a tree of (tag, attributes, text), and a check that every tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1:] != ["style"]:
            self.texts.append(text)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def claim_of(html, name):
    """Return the text of one claim's article."""
    found = re.search(rf'<article class="claim" id="{re.escape(name)}".*?</article>', html, re.S)
    return Page(found[0]).text


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A repository's root with rooms of made-up papers."""
    import replicata.papers

    for name in ("pyproject.toml", "Snakefile"):
        (tmp_path / name).touch()
    monkeypatch.setenv("REPLICATA_ROOT", str(tmp_path))
    monkeypatch.setattr(replicata.papers, "__path__", [str(tmp_path / "rooms")])
    return tmp_path


@pytest.fixture
def folding(house):
    """One paper with every verdict, run at profile cpu."""
    ledger = data.write_room(house / "rooms", data.FOLDING)
    data.write_results(house / "results", "cpu", ledger, data.EVIDENCE, {"c4": "vLLM is missing"})
    return house


def render(house, profile="cpu", papers=("folding",)):
    path = write_report(Path("results"), profile, list(papers))
    assert path == house / "results" / profile / "report.html"
    return path.read_text(encoding="utf-8")


def test_each_verdict_stands_beside_the_papers_value_with_its_evidence(folding):
    html = render(folding)
    c2 = claim_of(html, "folding.c2")
    for part in (
        "supported folding.c2 stated in the paper comparative",
        "Paper lower in 12 of 12 settings",
        "Here 0.95 pooled_ratio",
        "Interval [0.92, 0.97] 95 % cluster bootstrap (percentile, 12)",
        "p 0.00024 exact sign-flip test, less, 4096 sign patterns; smallest possible 0.00024",
        "n 12 contexts",
        "supported if wins = settings and pooled_high < 1",
        "contradicted if pooled_low > 1 inconclusive otherwise",
        "wins 4 settings 4 pooled_high 0.969 pooled_low 0.921 pooled_ratio 0.947",
        "Whether folding keeps what the bias buys, on a 135M model with short contexts.",
    ):
        assert part in c2, part
    assert "Detectable" not in c2  # what could have been found matters where nothing was

    c3 = claim_of(html, "folding.c3")
    assert c3.startswith("inconclusive folding.c3 reconstructed by us comparative")
    assert "Detectable 0.074 is the smallest effect this test would have found" in c3
    assert "A mechanism-level analogue with budgets of our own." in c3

    c4 = claim_of(html, "folding.c4")
    assert c4.startswith("not run folding.c4")
    assert "Why not run vLLM is missing" in c4
    assert "Here —" in c4

    c5 = claim_of(html, "folding.c5")
    assert c5.startswith("contradicted folding.c5")
    assert "Here -0.08 points / 100 difference" in c5
    assert "Contexts are a tenth as long as the paper's." in c5
    c6 = claim_of(html, "folding.c6")
    assert c6.startswith("not testable at this scale folding.c6")
    assert "Why not testable here Contexts of 128k tokens" in c6


def test_the_bar_counts_every_claim_once(folding):
    html = render(folding)
    text = Page(html).text
    assert "6 claims of 1 paper" in text
    assert (
        "2 supported 1 contradicted 1 inconclusive 1 not testable at this scale 1 not run" in text
    )
    bars = [(int(r["x"]), int(r["width"])) for r in Page(html).all("rect")]
    assert bars == [(0, 2), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert 'viewBox="0 0 6 1"' in html


def test_how_it_was_run_is_said(folding):
    text = Page(render(folding)).text
    assert (
        "Run from commit 3f2a9c1d5e on A Processor 9000 (2 cores, 8 GiB): 9 min 12 s summed over "
        "all jobs, peak memory 3.1 GiB." in text
    )
    assert "Packages numpy 2.4.6, torch 2.12.1, transformers 5.16.1" in text
    assert "Command replicata run folding --profile cpu --root results" in text
    assert "uncommitted" not in text


def test_it_is_one_file_and_its_links_lead_somewhere(folding):
    html = render(folding)
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not page.all("script")
    assert not page.all("link")
    assert "http:" not in html
    assert "https:" not in html
    base = folding / "results/cpu"
    links = [link["href"] for link in page.all("a")]
    for href in links:
        if href.startswith("#"):
            assert href[1:] in ids
        else:
            assert (base / href).is_file(), href
    assert {link for link in links if not link.startswith("#")} == {
        "folding/notebook.ipynb",
        "folding/claims.json",
        "folding/manifest.json",
        "folding/figures/f1_divergence.png",
    }
    (image,) = page.all("img")
    kind, _, content = image["src"].partition(",")
    assert kind == "data:image/png;base64"
    figure = (base / "folding/figures/f1_divergence.png").read_bytes()
    assert base64.b64decode(content) == figure
    assert (int(image["width"]), int(image["height"])) == (900, 510)  # 6 x 3.4 inches at 150 dpi
    assert image["alt"].startswith("KL divergence from the full cache by budget; n = 12")


def test_the_same_results_give_the_same_bytes(folding):
    first = render(folding)
    assert render(folding) == first


def test_what_papers_say_is_text_and_never_markup(house):
    attack = "<script>alert('x')</script> & \"quoted\" <img src=x>"
    ledger = json.loads(json.dumps(data.FOLDING))
    ledger["paper"] |= dict.fromkeys(("title", "authors", "reference", "summary"), attack)
    ledger["claims"][0] |= dict.fromkeys(("statement", "test", "shows", "paper_value"), attack)
    path = data.write_room(house / "rooms", ledger)
    room = data.write_results(
        house / "results", "cpu", path, data.EVIDENCE, {"c4": attack}, command=attack
    )
    (room / "figures/captions.json").write_text(json.dumps({"f1_divergence": attack}))
    page = Page(render(house))
    assert not page.all("script")
    assert len(page.all("img")) == 1
    assert page.text.count(" ".join(attack.split())) == 12


def test_backticks_become_code(folding):
    html = render(folding)
    assert "error divided by <code>D tanh(|eps| R / 4)</code>." in html


def test_smoke_is_marked_as_no_evidence(house):
    ledger = data.write_room(house / "rooms", data.FOLDING)
    data.write_results(house / "results", "smoke", ledger, data.EVIDENCE, {"c4": "no"})
    data.write_results(house / "results", "cpu", ledger, data.EVIDENCE, {"c4": "no"})
    assert "SMOKE - NOT EVIDENCE" in Page(render(house, "smoke")).text
    assert "SMOKE" not in render(house, "cpu")


def test_a_paper_without_results_is_shown_as_not_run(folding):
    data.write_room(folding / "rooms", data.other("later", "A later paper"))
    html = render(folding, papers=["folding", "later"])
    text = Page(html).text
    assert "8 claims of 2 papers" in text
    assert "2 not testable at this scale 2 not run" in text
    assert "Not run at profile cpu yet." in text
    assert claim_of(html, "later.c1").startswith("not run later.c1")
    assert claim_of(html, "later.c2").startswith("not testable at this scale later.c2")


def test_a_changed_ledger_and_uncommitted_code_are_said(house):
    ledger = data.write_room(house / "rooms", data.FOLDING)
    commit = {"sha": "c" * 40, "dirty": True}
    data.write_results(house / "results", "cpu", ledger, data.EVIDENCE, {"c4": "no"}, commit=commit)
    assert "claims.yaml has changed" not in render(house)
    ledger.write_text(ledger.read_text().replace("max_ratio <= 1.0001", "max_ratio <= 2.0"))
    text = Page(render(house)).text
    assert "claims.yaml has changed since this run" in text
    assert "supported if max_ratio ≤ 1.0001" in text  # the rule of the run
    assert "The code had uncommitted changes when this was run." in text


def test_a_rerun_is_shown_beside_the_reference(folding):
    def entry(status, reference, rerun, same):
        return {"status": status, "reference": reference, "rerun": rerun, "same_verdict": same}

    within = "within the 95 % prediction interval"
    document = {
        "folding.c1": entry("identical", 0.5183, 0.5183, True),
        "folding.c2": entry(within, 0.947, 0.951, True),
        "folding.c3": entry("drifted", 0.981, 0.8812, True),
        "folding.c4": entry("not run", "supported", "not run: vLLM is missing", False),
        "folding.c5": entry(within, -0.08, -0.04, False),
    }
    path = folding / "results/cpu/comparison.json"
    path.write_text(json.dumps({"folding": document}))
    html = render(folding)
    assert "= Rerun: identical, same verdict reference 0.518, rerun 0.518" in claim_of(
        html, "folding.c1"
    )
    assert f"≈ Rerun: {within}, same verdict" in claim_of(html, "folding.c2")
    assert "≠ Rerun: drifted, same verdict" in claim_of(html, "folding.c3")
    assert "≠ Rerun: not run, another verdict reference supported" in claim_of(html, "folding.c4")
    assert "Rerun" not in claim_of(html, "folding.c6")
    assert (
        "Beside the reference: 1 identical, 2 within the 95 % prediction interval, 1 drifted, "
        "1 not run; same verdict for 3 of 5." in Page(html).text
    )
    differing = re.findall(r'href="#(folding\.c\d)"[^>]*>(?:(?!</a>).)*≠', html)
    assert differing == ["folding.c3", "folding.c4", "folding.c5"]

    path.write_text(json.dumps({"folding": {"folding.c1": {"status": "close"}}}))
    with pytest.raises(VerificationError, match=r"comparison.json: folding\.folding\.c1\.status"):
        render(folding)


def test_figures_that_could_not_be_drawn_are_named(folding):
    receipt = Receipt(
        stage="claims",
        key="k",
        outputs={},
        skipped={"figures/f5_serving.png": "not run: vLLM is missing"},
        seconds=1.0,
        peak_memory_mb=1.0,
        command="c",
        environment={},
    )
    path = folding / "results/cpu/folding/receipts/claims.json"
    path.parent.mkdir()
    path.write_text(pretty_json(receipt.model_dump()))
    text = Page(render(folding)).text
    assert "Figures (2)" in text
    assert "f5_serving.png: not run: vLLM is missing" in text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("claims.json", "{", "folding .cpu.: claims.json"),
        ("claims.json", "edited", "folding .cpu.: claims.json: claims.0: .*rule_sha256"),
        ("claims.json", "moved", "claims.json of folding .cpu. says it is of folding .smoke."),
        ("manifest.json", "{", "manifest.json of folding: the file: Invalid JSON"),
        ("manifest.json", "{}", "manifest.json of folding: commit: Field required"),
        (
            "figures/captions.json",
            "[]",
            "captions.json of folding: the file: Input should be an object",
        ),
        ("figures/f1_divergence.png", "text", "f1_divergence.png of folding is no PNG image"),
    ],
)
def test_damaged_results_make_no_page(folding, name, content, sentence):
    path = folding / "results/cpu/folding" / name
    if content in ("edited", "moved"):
        document = json.loads(path.read_text())
        if content == "moved":
            document["profile"] = "smoke"
        else:
            document["claims"][0]["rule"]["supported"] = "max_ratio <= 9.0"
        content = json.dumps(document)
    path.write_text(content)
    with pytest.raises(VerificationError, match=sentence):
        render(folding)
    assert not (folding / "results/cpu/report.html").exists()


def test_unknown_names_are_refused(folding):
    with pytest.raises(UsageError, match=r"'foldin' \(did you mean 'folding'"):
        write_report(Path("results"), "cpu", ["foldin"])
    with pytest.raises(UsageError, match="no profile is called 'gpu'"):
        write_report(Path("results"), "gpu", ["folding"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.26, "0.3 s"),
        (59.4, "59.4 s"),
        (59.9, "1 min 00 s"),
        (552.3, "9 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7322, "2 h 02 min"),
    ],
)
def test_durations(seconds, text):
    assert report_text.duration(seconds) == text


# Readability: WCAG 2.2, success criterion 1.4.3, level AA: 4.5:1 for text.


def luminance(colour):
    """Return the relative luminance of ``#rrggbb`` as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes():
    """Return the colours of the light and of the dark theme."""
    css = CSS.read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)[:2]
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    assert light.keys() == dark.keys()
    return [("light", light), ("dark", dark)]


@pytest.mark.parametrize(("name", "colours"), themes())
def test_contrast_is_enough_in_both_themes(name, colours):
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    texts = [
        (ink, ground)
        for ink in ("ink", "muted", "link", "contradicted")
        for ground in ("page", "card", "panel")
    ]
    for verdict in report_text.VERDICTS:
        texts += [(verdict, f"{verdict}-bg"), (verdict, "page")]
    texts.append(("banner", "banner-bg"))
    for ink, ground in texts:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (name, ink, ground)


def test_no_verdict_is_told_by_colour_alone(folding):
    html = render(folding)
    for key, word in report_text.VERDICTS.items():
        assert f'<symbol id="i-{key}"' in html
        badge = rf'<span class="badge {key}"><svg[^>]*><use href="#i-{key}"/></svg>\s*{word}</span>'
        assert re.search(badge, html), key
