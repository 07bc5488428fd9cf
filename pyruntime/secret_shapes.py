"""Shapes of keys: the first characters by which services mark the keys that they issue, as data.

Facts about formats, written down here anew; no code is taken over. Their sources are the rules of gitleaks
8.x (https://github.com/gitleaks/gitleaks, MIT), the plugins of detect-secrets 1.5 (Yelp, Apache-2.0), and the
services' own documentation. A key without such a mark is known by the name beside it: see `redaction`.

Pure; any thread.
"""

# Why lists of beginnings, and not one pattern of all: Python's patterns try each alternative at each place of
# a text. `in` looks for a beginning at the speed of memory, and most texts have none.

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

_LETTERS = r"[A-Za-z0-9]"
_WORD = r"[\w-]"
_BASE64 = r"[\w+/=%-]"
_DOTTED = r"[\w.-]"
_HEX = r"[0-9A-Fa-f]"


class Shape(NamedTuple):
    """The keys of a service. begins: their first characters, whose case counts.

    characters: a class of those that follow. least: as many follow at least; a key that was cut has fewer
    than a whole one.
    """

    owner: str
    begins: tuple[str, ...]
    characters: str
    least: int


SHAPES: tuple[Shape, ...] = (
    # Models and vectors.
    Shape("OpenAI, Anthropic, OpenRouter, DeepSeek, LiteLLM", ("sk-",), _WORD, 12),
    Shape("OpenAI", ("sess-",), _LETTERS, 24),
    Shape("Groq", ("gsk_",), _LETTERS, 20),
    Shape("xAI", ("xai-",), _LETTERS, 24),
    Shape("NVIDIA", ("nvapi-",), _WORD, 20),
    Shape("Databricks", ("dapi", "dose"), _HEX, 24),
    Shape("Pinecone", ("pcsk_",), _WORD, 16),
    Shape("Voyage", ("pa-", "al-"), _WORD, 28),
    Shape("Jina", ("jina_",), _WORD, 20),
    Shape("Perplexity", ("pplx-",), _LETTERS, 20),
    Shape("Fireworks", ("fw_", "fpk_"), _LETTERS, 16),
    Shape("Replicate", ("r8_",), _LETTERS, 20),
    Shape("Hugging Face", ("hf_", "api_org_"), _LETTERS, 16),
    Shape("Together", ("tgp_v1_",), _WORD, 16),
    Shape("Cerebras", ("csk-",), _LETTERS, 20),
    Shape("Tavily", ("tvly-",), _WORD, 16),
    Shape("Firecrawl", ("fc-",), _HEX, 24),
    Shape("Apify", ("apify_api_",), _LETTERS, 16),
    Shape("LangSmith", ("lsv2_pt_", "lsv2_sk_", "ls__"), _WORD, 20),
    Shape("Weights & Biases", ("wandb_v1_",), _WORD, 20),
    Shape("RunPod", ("rpa_",), _LETTERS, 24),
    Shape("Modal", ("ak-", "as-"), _LETTERS, 20),
    Shape("LlamaCloud", ("llx-",), _LETTERS, 20),
    Shape("Anyscale", ("esecret_",), _LETTERS, 16),
    Shape("ElevenLabs, Novita", ("sk_",), _LETTERS, 24),
    Shape("Brave", ("BSA",), _WORD, 24),
    Shape("E2B", ("e2b_",), _HEX, 24),
    Shape("Browserbase", ("bb_live_",), _WORD, 16),
    # Clouds.
    Shape("AWS", ("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z0-9]", 12),
    Shape("AWS, tokens of sessions", ("FwoGZXIvYXdz", "IQoJb3JpZ2lu"), _BASE64, 24),
    Shape("AWS Bedrock", ("ABSK", "bedrock-api-key-"), _BASE64, 24),
    Shape("Google", ("AIza", "GOCSPX-", "1//0", "AQ.Ab"), _WORD, 16),
    Shape("Google OAuth", ("ya29.",), _DOTTED, 10),
    Shape("Alibaba", ("LTAI",), _LETTERS, 12),
    Shape("Tencent", ("AKID",), _LETTERS, 20),
    Shape("Volcengine", ("AKLT",), _LETTERS, 20),
    Shape("Baidu", ("ALTAK-",), _LETTERS, 16),
    Shape("Yandex", ("AQVN", "y0_"), _WORD, 28),
    Shape("DigitalOcean", ("dop_v1_", "doo_v1_", "dor_v1_"), _HEX, 24),
    Shape("Heroku", ("HRKU-",), _WORD, 24),
    Shape("Cloudflare", ("v1.0-",), r"[0-9a-f-]", 40),
    Shape("Fly.io", ("fo1_", "fm1r_", "fm1a_", "fm2_"), _BASE64, 24),
    Shape("Supabase", ("sbp_", "sb_secret_"), _WORD, 20),
    Shape("Netlify", ("nfp_",), _LETTERS, 20),
    Shape("PlanetScale", ("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), _DOTTED, 20),
    Shape("HashiCorp Vault", ("hvs.", "hvb.", "hvr."), _WORD, 20),
    Shape("Doppler", ("dp.pt.", "dp.st.", "dp.ct.", "dp.sa."), _DOTTED, 20),
    Shape("Pulumi", ("pul-",), _HEX, 24),
    Shape("OpenShift", ("sha256~",), _WORD, 24),
    Shape("Scalingo", ("tk-us-",), _WORD, 24),
    # Code and packages.
    Shape("GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), r"\w", 16),
    Shape(
        "GitLab",
        (
            *("glpat-", "gldt-", "glft-", "glrt-", "glsoat-", "glcbt-", "glimt-", "glptt-", "glagent-"),
            *("gloas-", "glffct-", "GR1348941"),
        ),
        _DOTTED,
        16,
    ),
    Shape("Atlassian", ("ATATT3", "ATCTT3", "ATSTT3", "ATBB"), r"[\w=-]", 24),
    Shape("npm", ("npm_",), _LETTERS, 20),
    Shape("PyPI", ("pypi-",), _WORD, 20),
    Shape("RubyGems", ("rubygems_",), _HEX, 24),
    Shape("NuGet", ("oy2",), r"[a-z0-9]", 32),
    Shape("crates.io", ("cio",), _LETTERS, 28),
    Shape("Clojars", ("CLOJARS_",), _LETTERS, 20),
    Shape("Docker", ("dckr_pat_", "dckr_oat_"), _WORD, 16),
    Shape("Artifactory", ("AKCp", "cmVmd"), _LETTERS, 40),
    Shape("Octopus Deploy", ("API-",), r"[A-Z0-9]", 20),
    Shape("Postman", ("PMAK-",), _WORD, 20),
    Shape("Prefect", ("pnu_",), _LETTERS, 20),
    Shape("ReadMe", ("rdme_",), _LETTERS, 24),
    Shape("Sourcegraph", ("sgp_",), r"\w", 24),
    Shape("Snyk", ("snyk_",), _DOTTED, 24),
    Shape("Sonar", ("sqp_", "squ_", "sqa_"), _HEX, 24),
    # Messages, work, money.
    Shape(
        "Slack",
        (
            *("xoxa-", "xoxb-", "xoxc-", "xoxd-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xoxe."),
            *("xapp-", "xwfp-"),
        ),
        r"[\w%-]",
        8,
    ),
    Shape(
        "Stripe",
        ("sk_live_", "sk_test_", "sk_prod_", "rk_live_", "rk_test_", "rk_prod_"),
        _LETTERS,
        8,
    ),
    Shape("Stripe, of webhooks", ("whsec_",), _BASE64, 16),
    Shape("Square", ("EAAA", "sq0atp-", "sq0csp-"), _WORD, 20),
    Shape("SendGrid", ("SG.",), _DOTTED, 16),
    Shape("Twilio", ("SK", "AC"), _HEX, 32),
    Shape("Mailgun", ("key-",), _HEX, 32),
    Shape("Brevo", ("xkeysib-", "xsmtpsib-"), _WORD, 24),
    Shape("Resend", ("re_",), r"\w", 24),
    Shape("Shopify", ("shpat_", "shpca_", "shppa_", "shpss_"), _HEX, 20),
    Shape("Shippo", ("shippo_live_", "shippo_test_"), _HEX, 20),
    Shape("Facebook", ("EAAC", "EAAM", "EAAB", "EAAG"), _LETTERS, 60),
    Shape("Notion", ("ntn_", "secret_"), _LETTERS, 32),
    Shape("Linear", ("lin_api_", "lin_oauth_"), _LETTERS, 20),
    Shape("Figma", ("figd_",), _WORD, 20),
    Shape("Typeform", ("tfp_",), _DOTTED, 24),
    Shape("Contentful", ("CFPAT-",), _WORD, 24),
    Shape("1Password", ("ops_eyJ",), _BASE64, 24),
    Shape("1Password, secret keys", ("A3-",), r"[A-Z0-9-]", 24),
    Shape("EasyPost", ("EZAK", "EZTK"), _LETTERS, 32),
    Shape("Flutterwave", ("FLWSECK-", "FLWSECK_TEST-"), _WORD, 12),
    Shape("Duffel", ("duffel_live_", "duffel_test_"), r"[\w=-]", 20),
    Shape("Frame.io", ("fio-u-",), r"[\w=-]", 32),
    Shape("Intra42", ("s-s4t2",), _WORD, 32),
    Shape("Adobe", ("p8e-",), _LETTERS, 24),
    # What watches.
    Shape("Grafana", ("glc_", "glsa_"), r"[\w+/=]", 24),
    Shape("New Relic", ("NRAK-", "NRJS-", "NRII-", "NRRA-"), _WORD, 16),
    Shape("PostHog", ("phx_", "phc_"), _LETTERS, 24),
    Shape("Sentry", ("sntrys_", "sntryu_"), r"[\w+/=]", 24),
    Shape("Dynatrace", ("dt0c01.",), _DOTTED, 24),
    Shape("SettleMint", ("sm_aat_", "sm_pat_", "sm_sat_"), _LETTERS, 12),
    # Forms of no one service.
    Shape("JSON web tokens", ("eyJ",), _DOTTED, 16),
    Shape("JSON web tokens in Base64", ("ZXlK",), _BASE64, 40),
    Shape("PEM in Base64", ("LS0tLS1CRUdJTi",), _BASE64, 24),
    Shape("PKCS #8 without its lines", ("MIIEvQIBADAN", "MIIEvgIBADAN", "MC4CAQAwBQYDK2Vw"), _BASE64, 24),
    Shape(
        "Headers of HTTP in Base64",
        ("QXV0aG9yaXphdGlvb", "YXV0aG9yaXphdGlvb", "QmVhcmVyI", "YmVhcmVyI", "QmFzaWMg", "YmFzaWMg"),
        _BASE64,
        8,
    ),
    Shape("age", ("AGE-SECRET-KEY-1",), r"[A-Z0-9]", 24),
)

# Behind a percent sign, a backslash or a colour of a terminal stands no letter of a word.
_ENDS_ESCAPE = re.compile(
    r"(?:%[0-9A-Fa-f]{2}|\\[nrtbf]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\[[0-9;]{0,8}m)\Z"
)
_ESCAPE_CHARACTERS = 10
_MAX_COMPARED = 256
"""Characters of a key that are looked at to tell it from words."""
_TAIL = re.compile(r"[\w%+/=-]*", re.ASCII)

INFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # The mark of these stands inside.
    ("Q~", re.compile(r"[\w~.]{3}\dQ~[\w~.-]{24,}", re.ASCII)),  # Entra ID
    ("JQQJ99", re.compile(r"(?<!\w)\w{20,80}JQQJ99\w{8,}", re.ASCII)),  # Azure's AI services
    ("AZDO", re.compile(r"(?<!\w)\w{60,90}AZDO\w{2,8}", re.ASCII)),  # Azure DevOps
    ("==", re.compile(r"[\w+/]{86}==", re.ASCII)),  # keys of 64 bytes: Azure's storage, and others
    (".atlasv1.", re.compile(r"(?<!\w)\w{10,20}\.atlasv1\.[\w=-]{20,}", re.ASCII)),  # Terraform
    ("pat", re.compile(r"pat[A-Za-z0-9]{14}\.[0-9a-f]{24,}", re.ASCII)),  # Airtable
    ("-us", re.compile(r"[0-9a-f]{32}-us[0-9]{1,2}(?!\w)", re.ASCII)),  # Mailchimp
    (":AA", re.compile(r"(?<!\d)\d{8,10}:AA[\w-]{30,}", re.ASCII)),  # bots of Telegram
    (".", re.compile(r"[MNO][\w-]{22,27}\.[\w-]{6}\.[\w-]{25,}", re.ASCII)),  # bots of Discord
    ("_mmk", re.compile(r"(?<!\w)[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk", re.ASCII)),  # MaxMind
)


class _Begin(NamedTuple):
    """A prefix of keys: its text, the pattern behind it, and the least number of characters behind it."""

    text: str
    rest: re.Pattern[str]
    least: int


def _begins_of(shapes: Iterable[Shape]) -> list[_Begin]:
    classes = {shape.characters for shape in shapes}
    known = {each: re.compile(f"{each}{{0,{_MAX_COMPARED}}}", re.ASCII) for each in classes}
    found = [_Begin(each, known[shape.characters], shape.least) for shape in shapes for each in shape.begins]
    # The longer first: of two that begin alike, the one that takes less for a key.
    return sorted(found, key=lambda each: -len(each.text))


_IN_RUN: dict[str, list[_Begin]] = {}
"""By their first two characters: those that are a part of the run of word characters behind them."""
_BEFORE_RUN: list[_Begin] = []
"""Those with a sign at which a run begins anew, or with such signs soon behind them."""
for _begin in _begins_of(SHAPES):
    if re.fullmatch(r"[\w-]+", _begin.text) and "+" not in _begin.rest.pattern:
        _IN_RUN.setdefault(_begin.text[:2], []).append(_begin)
    else:
        _BEFORE_RUN.append(_begin)

_SIGNS_TO_SPACES = {code: " " for code in range(128) if not re.match(r"[\w-]", chr(code), re.ASCII)}
_LEAST_RUN = 12
"""Letters, digits and dashes in a row that each key has."""
_LEAST_LETTERS = 24
"""The same without a digit, of both cases."""


def has_long_word(text: str) -> bool:
    """Return False for most texts, in a few microseconds: none of their words can be a part of a key."""
    words = [word for word in text.translate(_SIGNS_TO_SPACES).split() if len(word) >= _LEAST_RUN]
    return any(
        ((len(word) >= _LEAST_LETTERS or not word.isalpha()) and _is_mixed(word)) or word.isupper()
        for word in words
    )


_RUN = re.compile(rf"[\w-]{{{_LEAST_RUN},}}", re.ASCII)
_PARTS = re.compile(r"[_-]")
_ESCAPED_AT_MOST = 5
"""Characters of a run that may be the end of an escape in front of a key."""


def without_keys(text: str, mask: str) -> str:
    """`text` with `mask` in the place of each key that has one of the shapes. Only where `has_long_word`."""
    found: list[tuple[int, int]] = []
    done = 0
    for run in _RUN.finditer(text):
        for at in _places(text, *run.span()):
            for begin in _IN_RUN.get(text[at : at + 2], ()) if at >= done else ():
                span = _key_at(text, at, begin) if text.startswith(begin.text, at) else None
                if span is not None:
                    found.append(span)
                    done = span[1]
                    break
    for begin in _BEFORE_RUN:
        at = text.find(begin.text)
        while at >= 0:
            span = _key_at(text, at, begin)
            if span is not None:
                found.append(span)
            at = text.find(begin.text, at + len(begin.text) if span is None else span[1])
    parts: list[str] = []
    done = 0
    for start, end in sorted(found):
        if start >= done:
            parts += text[done:start], mask
            done = end
    text = "".join((*parts, text[done:])) if parts else text
    for mark, pattern in INFIXES:
        if mark in text:
            text = pattern.sub(mask, text)
    return text


def _places(text: str, start: int, end: int) -> Iterable[int]:
    """The places of a run at which a key may begin."""
    yield from range(start, min(start + _ESCAPED_AT_MOST + 1, end))
    for each in _PARTS.finditer(text, start + _ESCAPED_AT_MOST, end):
        yield each.end()


def _key_at(text: str, at: int, begin: _Begin) -> tuple[int, int] | None:
    """Return where the key is that begins so at this place; None if there is none."""
    start = at + len(begin.text)
    rest = begin.rest.match(text, start)
    assert rest is not None
    if rest.end() - start < begin.least or not _begins(text, at) or not _is_random_part(rest[0]):
        return None
    tail = _TAIL.match(text, rest.end())
    assert tail is not None
    return at, tail.end()


def _begins(text: str, at: int) -> bool:
    """Return True if no word goes on at this place."""
    before = text[at - 1 : at]
    if not (before.isascii() and before.isalnum()):
        return True
    return _ENDS_ESCAPE.search(text[max(at - _ESCAPE_CHARACTERS, 0) : at]) is not None


def _is_random_part(part: str) -> bool:
    # One in thirty of AWS's keys has capital letters alone.
    return _is_mixed(part) or (part.isupper() and len(part) >= MIN_SECRET_CHARACTERS)


def _is_mixed(part: str) -> bool:
    """Return True if a text has digits, or letters of both cases inside, as words seldom have."""
    if any(map(str.isdecimal, part)):
        return True
    return not (part.islower() or part.isupper())


MIN_SECRET_CHARACTERS = 16
"""Characters of a value that may be a key by its looks alone, beside a name of one."""
MIN_BITS = 3.0
"""Bits of entropy of each character of it: 32 random digits of base 16 have more, repeated signs less."""


def is_random(value: str) -> bool:
    """Return True if a part of `value` between signs looks like a key: long, letters and digits mixed."""
    return any(
        len(part) >= MIN_SECRET_CHARACTERS
        and not part.isdecimal()
        and not part.isalpha() | part.islower() & (sum(map(str.isdecimal, part)) < 3)
        and _entropy(part) >= MIN_BITS
        for part in re.split(r"[^A-Za-z0-9+]+", value[:_MAX_COMPARED])
    ) or _is_mixed_case_noise(value)


def _is_mixed_case_noise(value: str) -> bool:
    """Return True for 24 letters and more that change case as no name does."""
    letters = value[:_MAX_COMPARED]
    if len(letters) < 24 or not letters.isalnum():
        return False
    changes = sum(a.islower() != b.islower() for a, b in pairwise(letters))
    return 3 * changes >= len(letters) and _entropy(letters) >= MIN_BITS


def _entropy(text: str) -> float:
    """Bits of each character, by how often each stands in `text`."""
    size = len(text)
    return -sum(count / size * math.log2(count / size) for count in Counter(text).values())
