"""Refusals in another language than English: their meaning and the wait that they name."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, judge, refusal_words
from tidegate.providers.refusal_limits import read_prose
from tidegate.providers.refusal_words import in_english

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer(status, message):
    return judge(COMPATIBLE, status, [], json.dumps({"error": {"message": message}}).encode(), NOW)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, "您的账户余额不足，请充值", Kind.QUOTA_EXHAUSTED),
        (403, "用戶額度不足", Kind.QUOTA_EXHAUSTED),
        (403, "预扣费额度失败, 用户剩余额度: ＄0.001000, 需要预扣费额度: ＄0.010000", Kind.QUOTA_EXHAUSTED),
        (429, "本周使用上限已达到", Kind.QUOTA_EXHAUSTED),
        (429, "套餐用量已耗尽", Kind.QUOTA_EXHAUSTED),
        (429, "今日调用次数已用完", Kind.DAILY_LIMIT),
        (429, "今日免费额度已用完，第二天再来", Kind.DAILY_LIMIT),
        (403, "当前用户订阅额度已用完，将于明日重置", Kind.DAILY_LIMIT),
        (429, "积分不足", Kind.QUOTA_EXHAUSTED),
        (500, "已超出每日额度", Kind.DAILY_LIMIT),
        (429, "每分钟请求次数超过限制，每日上限 1000 次", Kind.RATE_LIMIT),
        (403, "请求过于频繁", Kind.RATE_LIMIT),
        (500, "并发请求数超过限制", Kind.RATE_LIMIT),
        (500, "当前并发较高", Kind.RATE_LIMIT),
        (429, "该模型当前访问量过大", Kind.OVERLOADED),
    ],
)
def test_the_concepts_of_a_message_name_its_meaning(status, message, kind):
    assert answer(status, message).kind is kind


@pytest.mark.parametrize(
    "message",
    [
        "输入长度超过限制",
        "用户输入无效: 今日额度已用完",
        "参数错误: content 超过每日限制",
        "每日一题",
    ],
)
def test_an_invalid_request_stays_one(message):
    outcome = answer(400, message)
    assert (outcome.kind, outcome.retry_after) == (Kind.PERMANENT, None)


@pytest.mark.parametrize(
    ("message", "wait"),
    [
        ("请在 30 秒后重试", 30),
        ("5分钟后再试", 300),
        ("将在 3 天后重置", 259200),
        ("max 30 requests in 60 seconds", None),
        ("每30秒一次", None),
        ("30天内有效", None),
        ("请在 999999999 天后重试", None),
    ],
)
def test_a_wait_is_read_with_what_says_that_it_follows(message, wait):
    assert read_prose(in_english(message)).wait == wait


def test_other_text_is_left_as_it_is_and_loads_no_phrases():
    refusal_words._phrases.cache_clear()
    for text in ("you have reached your daily limit \u2026 wait", "tageslimit erreicht", "дневной лимит", "하루 한도"):
        assert in_english(text) == text
    assert refusal_words._phrases.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(402, Kind.QUOTA_EXHAUSTED), (429, Kind.RATE_LIMIT), (503, Kind.OVERLOADED), (529, Kind.OVERLOADED)],
)
def test_the_status_decides_where_no_phrase_is_known(status, kind):
    assert answer(status, "Превышена дневная квота").kind is kind


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (403, "insufficient_user_quota", "用户额度不足", (Kind.QUOTA_EXHAUSTED, "money")),
        (403, "pre_consume_token_quota_failed", "令牌额度不足", (Kind.QUOTA_EXHAUSTED, "money")),
        (401, "", "该令牌额度已用尽", (Kind.QUOTA_EXHAUSTED, "money")),
        (401, "", "无效的令牌", (Kind.PERMANENT, "auth")),
        (403, "", "用户已被封禁", (Kind.PERMANENT, "auth")),
        (403, "", "该令牌无权访问模型 gpt-4", (Kind.PERMANENT, "auth")),
        (429, "", "当前分组上游负载已饱和，请稍后再试", (Kind.OVERLOADED, "others_capacity")),
        (503, "model_not_found", "当前分组 default 下对于模型 gpt-4 无可用渠道", (Kind.OVERLOADED, "unavailable")),
    ],
)
def test_the_answers_of_new_api_and_one_api_are_read(status, code, message, expected):
    error = {"message": message, "type": "new_api_error", "code": code or None}
    found = judge(COMPATIBLE, status, [], json.dumps({"error": error}).encode(), NOW)
    assert (found.kind, found.cause) == expected


@pytest.mark.parametrize(
    ("message", "limit", "window"),
    [
        ("您已达到请求数限制：1分钟内最多请求60次", 60, 60),
        ("您已达到总请求数限制：3分钟内最多请求 100 次，包括失败次数，请检查您的请求是否正确", 100, 180),
    ],
)
def test_a_limit_and_its_window_are_read_from_chinese_words(message, limit, window):
    found = answer(429, message)
    assert found.kind is Kind.RATE_LIMIT
    assert [(r.unit, r.limit, r.window) for r in found.readings] == [("requests", limit, window)]
