"""Credentials for tests, made anew at run time: nothing that a secret scanner would find stands in a file.

The forms are those of the rules of gitleaks (`config/gitleaks.toml`, read in November 2026), one for each rule whose
form says by itself that it is a credential, and those of the providers of models.
"""

from __future__ import annotations

import random
import string

HEX, LOWER, ALNUM = "0123456789abcdef", string.ascii_lowercase + string.digits, string.ascii_letters + string.digits
WORD = ALNUM + "_-"
UPPER = string.ascii_uppercase + string.digits

FORMS: dict[str, tuple[str | tuple[str, int], ...]] = {
    "1password-secret-key": ("A3-", (UPPER, 6), "-", (UPPER, 11), "-", (UPPER, 5), "-", (UPPER, 5), "-", (UPPER, 5)),
    "1password-service-account": ("ops_ey", "J", (ALNUM, 250)),
    "adobe-client-secret": ("p8e-", (LOWER, 32)),
    "age-secret-key": ("AGE-SECRET", "-KEY-1", (UPPER, 58)),
    "airtable-pat": ("pat", "l04IVsHQbQt2cv", ".", (HEX, 64)),
    "alibaba-access-key-id": ("LT", "AI", (LOWER, 20)),
    "anthropic-admin-api-key": ("sk-ant", "-admin01-", (WORD, 93), "AA"),
    "anthropic-api-key": ("sk-ant", "-api03-", (WORD, 93), "AA"),
    "artifactory-api-key": ("AK", "Cp", (ALNUM, 69)),
    "artifactory-reference-token": ("cm", "Vmd", (ALNUM, 59)),
    "aws-access-token": ("AK", "IA", (UPPER, 16)),
    "aws-bedrock-long": ("AB", "SK", (ALNUM, 110)),
    "aws-bedrock-short": ("bedrock-api-key-", (ALNUM, 60)),
    "clojars-api-token": ("CLO", "JARS_", (LOWER, 60)),
    "cohere-api-token": ("COHERE_API_KEY=", (ALNUM, 40)),
    "databricks-api-token": ("da", "pi", (HEX, 32)),
    "digitalocean-access-token": ("doo_v1_", (HEX, 64)),
    "digitalocean-pat": ("dop_v1_", (HEX, 64)),
    "doppler-api-token": ("dp.pt.", (LOWER, 43)),
    "duffel-api-token": ("duffel_test_", (LOWER, 43)),
    "dynatrace-api-token": ("dt0c01.", (LOWER, 24), ".", (LOWER, 64)),
    "easypost-api-token": ("EZ", "AK", (LOWER, 54)),
    "facebook-page-token": ("EA", "AM", (LOWER, 110)),
    "flutterwave-secret-key": ("FLW", "SECK_TEST-", (HEX, 32), "-X"),
    "frameio-api-token": ("fio-u-", (LOWER, 64)),
    "gcp-api-key": ("AI", "za", (WORD, 35)),
    "github-app-token": ("gh", "s_", (ALNUM, 36)),
    "github-fine-grained-pat": ("github", "_pat_", (ALNUM, 82)),
    "github-oauth": ("gh", "o_", (ALNUM, 36)),
    "github-pat": ("gh", "p_", (ALNUM, 36)),
    "gitlab-cicd-job-token": ("glcbt-", (ALNUM, 2), "_", (WORD, 20)),
    "gitlab-pat": ("gl", "pat-", (WORD, 20)),
    "gitlab-ptt": ("glptt-", (HEX, 40)),
    "gitlab-rrt": ("GR13", "48941", (WORD, 20)),
    "gitlab-runner": ("glrt-", (WORD, 20)),
    "grafana-api-key": ("ey", "JrIjoi", (ALNUM, 80)),
    "grafana-cloud-api-token": ("glc_", (ALNUM, 40)),
    "grafana-service-account": ("glsa_", (ALNUM, 32), "_", (HEX, 8)),
    "harness-api-key": ("pat.", (WORD, 22), ".", (ALNUM, 24), ".", (ALNUM, 20)),
    "heroku-api-key-v2": ("HRKU-AA", (WORD, 58)),
    "huggingface-access-token": ("hf", "_", (string.ascii_letters, 34)),
    "huggingface-organization": ("api_org_", (string.ascii_letters, 34)),
    "infracost-api-token": ("ico-", (ALNUM, 32)),
    "jwt": ("ey", "J", (ALNUM, 20), ".ey", "J", (ALNUM, 30), ".", (WORD, 43)),
    "linear-api-key": ("lin_api_", (LOWER, 40)),
    "notion-api-token": ("ntn_", (string.digits, 11), (ALNUM, 35)),
    "npm-access-token": ("npm", "_", (LOWER, 36)),
    "octopus-deploy-api-key": ("API-", (UPPER, 26)),
    "openai-api-key": ("sk-proj", "-", (WORD, 74), "T3Blb", "kFJ", (WORD, 74)),
    "openai-legacy-key": ("sk", "-", (ALNUM, 20), "T3Blb", "kFJ", (ALNUM, 20)),
    "openshift-user-token": ("sha256~", (WORD, 43)),
    "perplexity-api-key": ("pplx-", (ALNUM, 48)),
    "planetscale-password": ("pscale_pw_", (LOWER, 43)),
    "postman-api-token": ("PM", "AK-", (HEX, 24), "-", (HEX, 34)),
    "prefect-api-token": ("pnu_", (ALNUM, 36)),
    "pulumi-api-token": ("pul-", (HEX, 40)),
    "pypi-upload-token": ("py", "pi-AgEIcHlwaS5vcmc", (WORD, 60)),
    "readme-api-token": ("rdme_", (LOWER, 70)),
    "rubygems-api-token": ("rubygems_", (HEX, 48)),
    "sendgrid-api-token": ("S", "G.", (WORD, 22), ".", (WORD, 43)),
    "sendinblue-api-token": ("xkeysib-", (HEX, 64), "-", (LOWER, 16)),
    "sentry-user-token": ("sntryu_", (HEX, 64)),
    "shippo-api-token": ("shippo_live_", (HEX, 40)),
    "shopify-access-token": ("shp", "at_", (HEX, 32)),
    "slack-app-token": ("xa", "pp-1-", (UPPER, 11), "-", (string.digits, 13), "-", (LOWER, 64)),
    "slack-bot-token": ("xo", "xb-", (string.digits, 12), "-", (string.digits, 12), "-", (ALNUM, 24)),
    "slack-config-token": ("xo", "xe.xoxp-1-", (UPPER, 163)),
    "slack-user-token": ("xo", "xp-", (string.digits, 12), "-", (string.digits, 12), "-", (ALNUM, 30)),
    "slack-webhook-url": ("https://hooks.slack.com/services/", "T0/B0/", (ALNUM, 24)),
    "sourcegraph-access-token": ("sgp_", (HEX, 40)),
    "square-access-token": ("sq0", "atp-", (WORD, 22)),
    "stripe-access-token": ("sk", "_live_", (ALNUM, 24)),
    "twilio-api-key": ("S", "K", (HEX, 32)),
    "vault-service-token": ("hv", "s.", (WORD, 95)),
    "google-oauth": ("ya", "29.", (WORD, 60)),
    "groq-api-key": ("gs", "k_", (ALNUM, 52)),
    "xai-api-key": ("xa", "i-", (ALNUM, 80)),
    "nvidia-api-key": ("nv", "api-", (WORD, 64)),
    "fireworks-api-key": ("fw", "_", (ALNUM, 24)),
    "cerebras-api-key": ("cs", "k-", (LOWER, 48)),
    "openrouter-api-key": ("sk-or", "-v1-", (HEX, 64)),
    "replicate-api-token": ("r8", "_", (ALNUM, 37)),
    "langsmith-api-key": ("lsv2", "_pt_", (HEX, 32), "_", (HEX, 10)),
    "pinecone-api-key": ("pcsk", "_", (ALNUM, 60)),
    "tavily-api-key": ("tvly", "-", (ALNUM, 32)),
    "anyscale-token": ("esec", "ret_", (LOWER, 24)),
}
"""Of each rule the parts of a credential: texts as they are, and how many characters of which alphabet."""


def made(form: str, seed: int = 0) -> str:
    """Return a credential of that form; another one for each seed."""
    return "".join(_parts(form, seed))


def random_parts(form: str, seed: int = 0) -> list[str]:
    parts = zip(FORMS[form], _parts(form, seed), strict=True)
    return [made for part, made in parts if not isinstance(part, str)]


def _parts(form: str, seed: int) -> list[str]:
    draw = random.Random(f"{form} {seed}")
    return [part if isinstance(part, str) else "".join(draw.choices(part[0], k=part[1])) for part in FORMS[form]]


def random_text(length: int, alphabet: str = ALNUM, seed: int = 0) -> str:
    """Return characters drawn from an alphabet, with a letter and a digit among them."""
    draw = random.Random(f"{alphabet} {length} {seed}")
    return "q7" + "".join(draw.choices(alphabet, k=length - 2))


def left_of(text: str, credential: str, least: int = 8) -> str:
    """Return the longest part of a credential that a text still holds, of `least` characters or more; else nothing."""
    best = ""
    for start in range(len(credential) - least + 1):
        size = max(least, len(best) + 1)
        while start + size <= len(credential) and credential[start : start + size] in text:
            best = credential[start : start + size]
            size += 1
    return best
