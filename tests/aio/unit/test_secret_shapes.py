"""Keys of many services, made at run time, are taken out of texts; ordinary messages stay.

No key stands in this file, so that none is reported: each is made of its mark and random characters.
"""

from __future__ import annotations

import ast
import base64
import random
import string
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.redaction import redacted
from pillarbox.secret_shapes import SHAPES
from tests.search import examples

LETTERS = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
WORD = LETTERS + "_-"
BASE64 = LETTERS + "+/"

Make = Callable[[random.Random], str]


def of(begin: str, length: int, alphabet: str = LETTERS, end: str = "") -> Make:
    return lambda rng: begin + "".join(rng.choices(alphabet, k=length)) + end


def joined(*parts: Make) -> Make:
    return lambda rng: "".join(part(rng) for part in parts)


MARKED: dict[str, Make] = {
    "OpenAI": of("sk-", 48),
    "OpenAI, of a project": of("sk-proj-", 124, WORD),
    "OpenAI, of a service": of("sk-svcacct-", 124, WORD),
    "Anthropic": of("sk-ant-api03-", 93, WORD, "AA"),
    "OpenRouter": of("sk-or-v1-", 64, HEX),
    "DeepSeek": of("sk-", 32, HEX),
    "Groq": of("gsk_", 52),
    "xAI": of("xai-", 80),
    "NVIDIA": of("nvapi-", 64, WORD),
    "Databricks": of("dapi", 32, HEX),
    "Databricks, numbered": of("dapi", 32, HEX, "-2"),
    "Pinecone": joined(of("pcsk_", 5), of("_", 60)),
    "Voyage": of("pa-", 43, WORD),
    "Jina": joined(of("jina_", 32, HEX), of("", 28)),
    "Perplexity": of("pplx-", 48),
    "Fireworks": of("fw_", 22),
    "Replicate": of("r8_", 37),
    "Hugging Face": of("hf_", 34, string.ascii_letters),
    "Hugging Face, of an organization": of("api_org_", 34, string.ascii_letters),
    "Together": of("tgp_v1_", 43, WORD),
    "Cerebras": of("csk-", 48, LOWER),
    "Tavily": of("tvly-", 32),
    "Firecrawl": of("fc-", 32, HEX),
    "Apify": of("apify_api_", 36),
    "LangSmith": joined(of("lsv2_pt_", 32, HEX), of("_", 10, HEX)),
    "RunPod": of("rpa_", 42),
    "LlamaCloud": of("llx-", 48),
    "Langfuse": of("sk-lf-", 36, HEX),
    "ElevenLabs": of("sk_", 48, HEX),
    "Brave": of("BSA", 28, WORD),
    "E2B": of("e2b_", 40, HEX),
    "AWS": of("AKIA", 16, UPPER),
    "AWS, for a session": of("ASIA", 16, UPPER),
    "AWS Bedrock": of("ABSK", 120, BASE64, "="),
    "AWS, token of a session": of("IQoJb3JpZ2lu", 200, BASE64),
    "Google": of("AIza", 35, WORD),
    "Google, of a user": of("ya29.a0", 60, WORD),
    "Google, to renew": of("1//0g", 60, WORD),
    "Google, of a client": of("GOCSPX-", 28, WORD),
    "Alibaba": of("LTAI", 20),
    "Tencent": of("AKID", 32),
    "Yandex": of("AQVN", 36, WORD),
    "DigitalOcean": of("dop_v1_", 64, HEX),
    "Heroku": of("HRKU-AA", 58, WORD),
    "Cloudflare": joined(of("v1.0-", 24, HEX), of("-", 146, HEX)),
    "Fly.io": of("fo1_", 43, WORD),
    "Supabase": of("sbp_", 40, HEX),
    "Netlify": of("nfp_", 36),
    "PlanetScale": of("pscale_tkn_", 43, WORD),
    "Vault": of("hvs.", 95, WORD),
    "Doppler": of("dp.pt.", 43),
    "Pulumi": of("pul-", 40, HEX),
    "OpenShift": of("sha256~", 43, WORD),
    "Terraform": joined(of("", 14), of(".atlasv1.", 65)),
    "Entra ID": joined(of("", 3), of("8Q~", 34)),
    "Azure's storage": of("", 86, BASE64, "=="),
    "Azure's AI services": joined(of("", 52), of("JQQJ99", 26)),
    "GitHub": of("ghp_", 36),
    "GitHub, of an application": of("ghs_", 36),
    "GitHub, fine-grained": joined(of("github_pat_", 22), of("_", 59)),
    "GitLab": of("glpat-", 20, WORD),
    "GitLab, of a runner": of("glrt-", 20, WORD),
    "Atlassian": of("ATATT3", 186, WORD),
    "npm": of("npm_", 36),
    "PyPI": of("pypi-AgEIcHlwaS5vcmc", 70, WORD),
    "RubyGems": of("rubygems_", 48, HEX),
    "NuGet": of("oy2", 43, LOWER),
    "Clojars": of("CLOJARS_", 60, LOWER),
    "Docker": of("dckr_pat_", 27, WORD),
    "Artifactory": of("AKCp", 69),
    "Octopus Deploy": of("API-", 26, UPPER),
    "Postman": joined(of("PMAK-", 24, HEX), of("-", 34, HEX)),
    "Prefect": of("pnu_", 36),
    "Sourcegraph": of("sgp_", 40, HEX),
    "Slack, of a bot": joined(of("xoxb-", 12, string.digits), of("-", 12, string.digits), of("-", 24)),
    "Slack, of a user": joined(of("xoxp-", 12, string.digits), of("-", 32, HEX)),
    "Slack, of an application": joined(
        of("xapp-1-", 11, UPPER), of("-", 13, string.digits), of("-", 64, HEX)
    ),
    "Stripe": of("sk_live_", 24),
    "Stripe, restricted": of("rk_live_", 24),
    "Stripe, of a webhook": of("whsec_", 32),
    "Square": of("sq0atp-", 22, WORD),
    "SendGrid": joined(of("SG.", 22, WORD), of(".", 43, WORD)),
    "Twilio": of("SK", 32, HEX),
    "Mailgun": of("key-", 32, HEX),
    "Mailchimp": of("", 32, HEX, "-us14"),
    "Brevo": joined(of("xkeysib-", 64, HEX), of("-", 16)),
    "Shopify": of("shpat_", 32, HEX),
    "Shippo": of("shippo_live_", 40, HEX),
    "Notion": of("ntn_", 46),
    "Notion, of before": of("secret_", 43),
    "Linear": of("lin_api_", 40),
    "Figma": of("figd_", 40, WORD),
    "Airtable": joined(of("pat", 14), of(".", 64, HEX)),
    "Contentful": of("CFPAT-", 43, WORD),
    "1Password": of("ops_eyJ", 250, BASE64),
    "EasyPost": of("EZAK", 54),
    "Grafana": joined(of("glsa_", 32), of("_", 8, HEX)),
    "Grafana Cloud": of("glc_", 60, BASE64),
    "New Relic": of("NRAK-", 27, UPPER),
    "PostHog": of("phx_", 43),
    "Sentry": of("sntryu_", 64, HEX),
    "Dynatrace": joined(of("dt0c01.", 24, UPPER), of(".", 64, UPPER)),
    "Telegram": joined(of("", 10, "123456789"), of(":AA", 33, WORD)),
    "Discord": joined(of("M", 23), of(".", 6), of(".", 27, WORD)),
    "a JSON web token": joined(of("eyJ", 30), of(".eyJ", 60), of(".", 43, WORD)),
    "age": of("AGE-SECRET-KEY-1", 58, UPPER),
}
"""Keys that are known by their marks, as their services make them."""

PLACES = {
    "alone": "{}",
    "words": "the service does not accept {} any more",
    "quotes": "no access for '{}' (401)",
    "brackets": "invalid <{}>, [{}]",
    "JSON": '{{"error": {{"message": "bad: {}"}}}}',
    "a line in JSON": '{{"message": "what was sent:\\n{}\\nis unknown"}}',
    "percent-encoded": "body: grant%3D{}%26x=1",
    "HTML": "<p>bad {}</p>",
    "a colour": "\x1b[31m{}\x1b[0m",
    "a colour, escaped": "\\u001b[1;31m{}\\u001b[0m",
    "an assignment": "sent={}; retry",
    "a path": "/v1/keys/{}/revoke",
}

NAMED: dict[str, tuple[str, Make]] = {
    "Cohere": ("COHERE_API_KEY={}", of("", 40)),
    "Cohere, in words": ("cohere client: {}", of("", 40)),
    "Mistral": ("mistral_key: '{}'", of("", 32)),
    "Together": ("together key is {}", of("", 64, HEX)),
    "Deepgram": ("Incorrect API key provided: {}.", of("", 40, HEX)),
    "Azure OpenAI": ("api-key: {}", of("", 32, HEX)),
    "a variable": ("{{'OPENAI_KEY': '{}'}}", of("", 16)),
    "an index": ("os.environ['OPENAI_KEY'] = '{}'", of("", 12)),
    "any variable": ("export MY_SERVICE_KEY={}", of("", 14)),
    "a password of a variable": ("DB_PASS={} ./job", of("h", 8)),
    "a password in a mapping": ("{{'smtp_pass': '{}'}}", of("h", 8)),
    "a password of a DSN": ("host=db user=me pass={}", of("h", 8)),
    "AWS": ("aws_secret_access_key = {}", of("", 40, BASE64)),
    "Azure's storage": ("AccountName=a;AccountKey={};EndpointSuffix=core", of("", 86, BASE64, "==")),
    "a shared access signature": ("sv=2022-11-02&sp=r&sig={}", of("", 43, LETTERS, "%3D")),
    "a signed URL": ("GET https://a.blob.example/x?sv=1&sig={} failed", of("", 43, LETTERS, "%3D")),
    "a cookie": ("Cookie: theme=dark; sid={}", of("", 24)),
    "a cookie that is set": ("Set-Cookie: sid={}; Path=/; HttpOnly\r\nServer: x", of("", 24)),
    "cookies with dates": ("set-cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT, sid={}", of("", 24)),
    "cookies of headers": ("{{'Set-Cookie': 'sid={}; Secure', 'Server': 'x'}}", of("", 24)),
    "a cookie in JSON": ('{{"headers": {{"Cookie": "sid={}; x=1"}}}}', of("", 24)),
    "a jar": ("<RequestsCookieJar[<Cookie sid={} for .example.com/>]>", of("", 24)),
    "cookies of a call": ("get(url, cookies={{'sid': '{}'}})", of("", 24)),
    "a webhook of Slack": ("POST https://hooks.slack.com/services/T0AB12CD3/B0AB12CD3/{}", of("", 24)),
    "a webhook of Slack, its path": ('"POST /services/T0AB12CD3/B0AB12CD3/{} HTTP/1.1" 404', of("", 24)),
    "a webhook in JSON": ("https:\\/\\/hooks.slack.com\\/services\\/T0AB12CD3\\/B0AB12CD3\\/{}", of("", 24)),
    "a webhook of Discord": ("https://discord.com/api/webhooks/123456789012345678/{}", of("", 68, WORD)),
    "a webhook of Discord, versioned": (
        "https://discordapp.com/api/v10/webhooks/123456789012345678/{}",
        of("", 68, WORD),
    ),
    "a webhook of Teams": ("https://acme.webhook.office.com/webhookb2/{}/IncomingWebhook/x", of("", 32, HEX)),
    "a webhook of Outlook": ("https://outlook.office.com/webhook/{}", of("", 32, HEX)),
    "a webhook of Zapier": ("https://hooks.zapier.com/hooks/catch/123456/{}/", of("b", 8)),
    "a webhook of Lark": ("https://open.larksuite.com/open-apis/bot/v2/hook/{}", of("", 32, HEX)),
    "a webhook of Mattermost": ("https://chat.example/hooks/{}", of("", 26, LOWER)),
    "a bot of Telegram": ("https://api.telegram.org/bot12345678:{}/sendMessage", of("AA", 33, WORD)),
    "a node of Infura": ("https://mainnet.infura.io/v3/{}", of("", 32, HEX)),
    "a user of a database": ("postgresql://me:{}@db.example:5432/people", of("", 12)),
    "a user of Mongo": ("mongodb+srv://me:{}@cluster0.example/?w=1", of("", 12)),
    "a user without a scheme": ("cannot connect to me:{}@db.example:5432", of("", 12)),
    "a user of Go": ("me:{}@tcp(127.0.0.1:3306)/people", of("", 12)),
    "a user of Oracle": ("jdbc:oracle:thin:me/{}@db.example:1521:x", of("", 12)),
    "a user of JDBC": ("jdbc:sqlserver://db.example;user=me;password={};encrypt=true", of("", 12)),
    "a user of ODBC": ("DRIVER=x;UID=me;PWD={};", of("", 12)),
    "a user in JSON": ("amqp:\\/\\/me:{}@mq.example\\/", of("", 12)),
    "a user, percent-encoded": ("url=redis%3A%2F%2Fme%3A{}%40db.example", of("", 12)),
    "basic": ("Authorization: Basic {}", lambda rng: base64.b64encode(of("me:", 12)(rng).encode()).decode()),
    "basic alone": (
        "sent Basic {} there",
        lambda rng: base64.b64encode(of("me:", 12)(rng).encode()).decode(),
    ),
    "authorization, percent-encoded": ("h=Authorization%3A%20Bearer%20{}%0D%0A", of("", 24)),
    "authorization, of a form": ("authorization%3DBearer+{}", of("", 24)),
    "authorization, twice encoded": ("Authorization%253A%2520Bearer%2520{}", of("", 24)),
    "authorization in JSON": ('"{{\\"Authorization\\": \\"Bearer {}\\"}}"', of("", 24)),
    "authorization in HTML": ("{{&quot;Authorization&quot;: &quot;Bearer {}&quot;}}", of("", 24)),
    "authorization in escapes": ("\\u0022Authorization\\u0022:\\u0022Token {}\\u0022", of("", 24)),
    "authorization in bytes": ("{{b'authorization': b'Token {}'}}", of("", 24)),
    "authorization of a pair": ("[(b'Authorization', b'Token {}')]", of("", 24)),
    "authorization in Base64": (
        "sent {}",
        lambda rng: base64.b64encode(of("Authorization: x", 24)(rng).encode()).decode(),
    ),
    "authorization with a name": ('Authorization: Token token="{}", x=1', of("", 24)),
    "a digest": ('Authorization: Digest username="me", nonce="1", response="{}"', of("", 32, HEX)),
    "AWS's signature": ("Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature={}", of("", 64, HEX)),
    "a key in bytes": ("{{b'x-api-key': b'{}'}}", of("", 24)),
    "a key of a pair": ("[('x-api-key', '{}')]", of("", 24)),
    "a key of a form": ("api_key%3D{}%26n%3D1", of("", 24)),
    "a key in XML": ("<x:ApiKey>{}</x:ApiKey>", of("", 24)),
    "a password in XML": ("<password>{}</password>", of("h", 8)),
    "an option": ("job --api-key {} --n 1", of("a1", 12)),
    "an option in a list": ("['job', '--password', '{}']", of("a1", 12)),
    "an option of curl": ("curl -u me:{} https://x.example", of("", 12)),
    "a session": ("session: {}", of("", 32)),
    "a private key": (
        "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----",
        of("", 64, BASE64),
    ),
    "a private key that is cut": ("-----BEGIN OPENSSH PRIVATE KEY-----\n{}", of("", 64, BASE64)),
    "a private key, percent-encoded": (
        "-----BEGIN%20RSA%20PRIVATE%20KEY-----%0A{}%0A-----END%20RSA%20PRIVATE%20KEY-----",
        of("", 64),
    ),
    "a private key of PGP": (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{}\n-----END PGP PRIVATE KEY BLOCK-----",
        of("", 64),
    ),
}
"""Texts in which a key without a mark is known by what stands beside it."""


def left(key: str, text: str) -> bool:
    """Return True if 12 characters of `key` in a row stand in `text`, or all of a shorter one."""
    size = min(12, len(key))
    return any(key[at : at + size] in text for at in range(len(key) - size + 1))


def test_there_are_more_than_a_hundred_shapes() -> None:
    assert len(MARKED) >= 100
    assert len({begin for shape in SHAPES for begin in shape.begins}) >= 100


@pytest.mark.contract("Keys of a hundred services are known by their marks, wherever they stand.")
@pytest.mark.parametrize("service", MARKED)
def test_keys_are_known_by_their_marks(service: str) -> None:
    passed = []
    for seed in range(20):
        rng = random.Random(f"{service} {seed}")
        for place, text in PLACES.items():
            key = MARKED[service](rng)
            shown = redacted(text.format(*(key,) * 2))
            if left(key[-16:] if service == "a JSON web token" else key, shown):
                passed.append((place, key, shown))
    assert not passed


@pytest.mark.contract("A key without a mark is known by the name, the header or the address beside it.")
@pytest.mark.parametrize("place", NAMED)
def test_keys_are_known_by_what_stands_beside_them(place: str) -> None:
    text, make = NAMED[place]
    passed = []
    for seed in range(20):
        key = make(random.Random(f"{place} {seed}"))
        shown = redacted(f"before: {text.format(key)}")
        assert shown.startswith("before: ")
        if left(key, shown):
            passed.append((key, shown))
    assert not passed


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda name, seed: MARKED[name](random.Random(seed)),
                st.sampled_from([*MARKED]),
                st.integers(0, 99),
            ),
            st.builds(
                lambda name, seed: NAMED[name][0].format(NAMED[name][1](random.Random(seed))),
                st.sampled_from([*NAMED]),
                st.integers(0, 99),
            ),
            st.sampled_from(
                [*" \n:=,;'\"/\\%@&?-_.<>", "key", "%3D", "\x1b[1m", "***", "pass", "token", "cookie:"]
            ),
        ),
        max_size=6,
    ).map("".join)
)
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "sk-",
            "sk-1",
            "sk-1-",
            "SG.",
            "SG.1",
            "key ",
            "key=",
            "token=",
            "token:'",
            "session ",
            "Cookie: ",
            "cookie=a;",
        ),
        *(
            "a:b@",
            "a:bcd@c:1 ",
            "/hooks/",
            "hooks/catch/",
            "-u a:",
            "--key ",
            "<key>",
            "</",
            "%3A%2F%2F",
            "%2F%2F%40",
        ),
        *(
            "Basic ",
            "pass=",
            "_PASS:",
            "JQQJ99",
            "A.",
            "key a1b2c3d4e5f6a7b8 ",
            "-----BEGIN PRIVATE KEY",
            "oracle:thin:",
        ),
    ],
)
def test_the_work_grows_no_faster_than_the_text(piece: str) -> None:
    # Nobody can count the steps of a pattern: what is quadratic takes minutes, and meets the time-out.
    text = piece * (500_000 // len(piece))
    assert len(redacted(text)) <= 3 * len(text)


# -- ordinary messages ---------------------------------------------------------------------------------------

ORDINARY = 10_000
FALSE_ALARMS = 30
"""Messages of so many that may be changed: 0.3 %. Most of them are examples of URLs and headers."""


@lru_cache
def ordinary_messages() -> list[str]:
    """Texts of several words of the standard library's code: errors, log lines, docstrings."""
    return [*islice(_messages(), ORDINARY)]


def _messages() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if {"test", "tests", "idlelib", "site-packages", "dist-packages", "pydoc_data"} & {*path.parts}:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
                yield node.value


@pytest.mark.contract("At most 0.3 % of 10,000 ordinary messages are changed.")
def test_ordinary_messages_stay() -> None:
    messages = ordinary_messages()
    assert len(messages) >= 5_000
    changed = [(text, shown) for text in messages if (shown := redacted(text)) != text.replace("\r\n", "\n")]
    assert len(changed) <= FALSE_ALARMS * len(messages) / ORDINARY, [shown[:300] for _, shown in changed]


@pytest.mark.parametrize(
    "text",
    [
        "request id: req_0a1b2c3d4e5f60718293a4b5 of https://api.openai.example/v1/threads/thread_9f8e7d6c5b4a39281706",
        "OpenAI request ID: 8f14e45fceea167a5a36dedd4bea2543",
        "trace 4bf92f3577b34da6a3ce929d0e0e4736 of the session",
        "Row(id=3, key=17), 5 keys, key: name, a key error: 'name', PRIMARY_KEY=id",
        "sk-learn-estimator, task-1234567890abcdef, disk-0123456789abcdef, first_pass: 12, 2 tests pass: 3",
        "row 3f2504e0-4f89-11d3-9a0c-0305e82c3301 of batch_0123456789 has no key",
        "s3://bucket/part-00000-3f2504e0-4f89-11d3-9a0c-0305e82c3301.c000.snappy.parquet is gone",
        "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12, sha256 of the file differs",
        "at com.example.HttpClientFactoryImpl2.buildTheConnection(HttpClientFactoryImpl2.java:1234)",
        "a basic authentication scheme, the bearer of the news, cookies are baked",
        "mailto:someone@mail.example, git@host.example:team/project.git, see https://docs.example/hooks/guide",
        "--token TOKEN is needed, --password is not; -u user",
        "https://prod-1.westus.logic.azure.com:443/workflows/x/triggers/manual/paths/invoke failed",
        "no endpoint for claude-sonnet-4-5-20250929 at 10.0.0.1:8080, gpt-4o-mini-2024-07-18",
    ],
)
def test_what_looks_a_little_like_a_key_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_secret_that_is_known_is_masked_in_small_percent_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    from pillarbox import redaction

    monkeypatch.setattr(redaction, "_SECRETS", ())
    redaction.remember_secret("a/b+c=secret?word")
    for form in (quote("a/b+c=secret?word", safe=""), quote("a/b+c=secret?word", safe="").lower()):
        assert redacted(f"sent ({form})") == "sent (***)"
