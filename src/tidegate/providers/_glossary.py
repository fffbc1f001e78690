"""Translation of the terms of a refusal in another language into the English words that `_word_families` reads.

Theory of operation. A message is not translated. Its terms of Chinese, Japanese, Korean, Russian, German, French,
Spanish and Portuguese give concepts: money, a bound, an excess, a window, load, concurrency, a rate. The concepts of a
message that go together are stated in English and added to its words. An excess or a bound is needed for a quota: a
window alone states nothing. Nothing is added to a message in English.

Sources: the terms are those of the project's collected answers, and the usual words of each language for the same.
"""

from __future__ import annotations

import re

from tidegate.providers._values import MAX_SECONDS


def _terms(*terms: str) -> re.Pattern[str]:
    return re.compile("|".join(terms))


_MONEY = _terms(
    r"余额不足|餘額不足|欠费|欠費",
    r"残高(?:が)?不足|クレジット(?:が)?不足|잔액\s?(?:이\s?)?부족|크레딧\w?\s?부족",
    r"недостаточно (?:средств|кредитов|денег)|пополните|баланс (?:исчерпан|недостаточен)",
    r"guthaben (?:ist )?(?:aufgebraucht|erschöpft)|unzureichendes guthaben|nicht genügend guthaben",
    r"(?:solde|crédits?) insuffisants?|saldo insuficiente|créditos insuficientes|sin (?:saldo|créditos)|sem saldo",
)
_ALLOWANCE = _terms(
    r"(?:额度|額度|积分|積分|点数|點數|算力|金币)(?:已)?(?:不足|不够|不夠|用尽|用完|耗尽|用盡)|充值|储值|续费|预扣费(?:额度)?失败"
)
"""An allowance that is bought, unless a window is named in which it returns."""
_BOUND = _terms(
    r"上限|限额|限額|额度|額度|配额|配額|限制|次数|次數|用量|制限|クォータ|한도|할당량|쿼터|제한",
    r"лимит|квот|limit\b|kontingent|grenze|limite|límite|quota|cuota|cota",
)
_EXCESS = _terms(
    r"超出|超过|超過|用完|用尽|用盡|耗尽|耗盡|达到|達到|已达|已滿|已满|達しました|超えました|초과|도달|소진",
    r"превы[шс]|исчерпан|достигнут|überschritten|erreicht|aufgebraucht|erschöpft|ausgeschöpft",
    r"dépass|atteint|épuis|excedi|superad|alcanzad|agotad|atingid|esgotad|ultrapass",
)
_RATE = _terms(
    r"频繁|頻繁|限流|限速|速率|频率|頻率|请求过多|請求過多|リクエストが多すぎ|レート制限|レートリミット",
    r"요청이 너무 많|너무 많은 요청|속도 제한",
    r"слишком много запросов|слишком част|частот\w+ запросов|ratenlimit|zu viele anfragen|anfragelimit",
    r"trop de requêtes|limite de débit|demasiadas (?:solicitudes|peticiones)|límite de (?:velocidad|solicitudes)",
    r"muitas (?:requisições|solicitações)|limite de (?:taxa|requisições)",
)
_LOAD = _terms(
    r"繁忙|拥挤|擁擠|过载|過載|负载|負載|访问量过大|訪問量過大|排队|排隊|资源不足|資源不足|混雑|過負荷|混み合|과부하|혼잡",
    r"перегруж|überlastet|ausgelastet|surcharg|sobrecarg|saturad|saturé",
)
_UPSTREAM = _terms(r"上游|上流|업스트림|апстрим")
_CONCURRENCY = _terms(
    r"并发|並發|同時リクエスト|同時実行|동시 요청|동시 실행", r"одновременн|gleichzeitig|simultan|concurren|paralelas"
)
_HIGH = _terms(r"较高|过高|過高|较多|过多|過多|높|多すぎ|слишком|zu (?:hoch|viele)|trop|demasiad|muit[ao]s")
_MINUTE = _terms(
    r"每分钟|每分鐘|分钟内|每秒|毎分|毎秒|1分|분당|초당|в (?:минуту|секунду)|pro (?:minute|sekunde)",
    r"par (?:minute|seconde)|por (?:minuto|segundo)",
)
_DAY = _terms(
    r"今日|今天|当日|當日|每日|每天|明天|明日|本日|日次|오늘|일일|하루|в (?:день|сутки)|сегодня|суточн|дневн|ежедневн",
    r"täglich|tages|pro tag|heute|quotidien|journali|par jour|aujourd|diari[ao]|por d[ií]a|por dia|hoje|hoy\b",
)
_LONGER = _terms(
    r"本月|每月|月度|本周|每周|本週|每週|今月|月間|週間|[0-9] ?小时|[0-9] ?小時|套餐|이번 달|월간|주간",
    r"в (?:месяц|неделю)|месячн",
    r"недельн|monatlich|monats|wöchentlich|wochen|pro (?:monat|woche)|mensuel|hebdomadaire|par (?:mois|semaine)",
    r"mensual|semanal|mensal|por (?:mes|semana|mês)",
)

_FAULT = _terms(
    r"参数|參數|无效|無效|不合法|非法|格式|必须|必須|不支持|不支援|过长|過長|解析|無効|不正|形式|잘못된|유효하지|형식",
    r"неверн|недопустим|некоррект|формат|ungültig|unzulässig|invalid[eoa]|inválid|inkorrekt|formato",
)
"""Words of an error about the request itself."""

_FOREIGN = _terms(r"[^\x00-\x7f]", r"limite|cuota|saldo|kontingent|anfragen|erreicht|guthaben|diari|mensual|mensal")
"""A letter outside ASCII, or a term of a language that is often written without one."""


def names_a_fault(words: str) -> bool:
    """Return whether the words describe a fault in the request, in another language."""
    return _FOREIGN.search(words) is not None and _FAULT.search(words) is not None


def in_english(words: str) -> str:
    """Return what the words state in another language, in English; empty if they state no refusal.

    `words` are in lower case. Of several windows the shortest is stated first, as a rate's limit may name them all.
    """
    if _FOREIGN.search(words) is None:
        return ""
    stated = []
    bound, excess = _BOUND.search(words), _EXCESS.search(words)
    returning = bound and excess and (_DAY.search(words) or _LONGER.search(words))
    if _MONEY.search(words) or (_ALLOWANCE.search(words) and not returning):
        stated.append("insufficient balance")
    if excess and bound and _MINUTE.search(words):
        stated.append("rate limit exceeded per minute")
    elif bound and (excess or _RATE.search(words)):
        if _LONGER.search(words):
            stated.append("monthly quota exceeded")
        if _DAY.search(words):
            stated.append("daily quota exceeded")
    if _LOAD.search(words):
        stated.append("upstream is overloaded" if _UPSTREAM.search(words) else "the server is overloaded")
    if _CONCURRENCY.search(words) and (bound or excess or _RATE.search(words) or _HIGH.search(words)):
        stated.append("concurrency limit exceeded")
    if _RATE.search(words):
        stated.append("rate limit exceeded")
    return ". ".join(stated)


_NUMBER = r"([0-9]{1,9}(?:[.,][0-9]{1,6})?)"
_WAITS = re.compile(
    rf"{_NUMBER} ?(毫秒|秒|分|小时|小時|時間|天|日|초|분|시간|일)(?:钟|鐘|間|동안)?\s?(?:之|以)?(?:后|後|뒤|후)"
    rf"|\b(?:через|dans|après|en|em|después de|após) {_NUMBER} "
    r"(сек|мин|час|дн|ден|second|minut|heure|jour|segund|hora|d[ií]a)"
    rf"|\b(?:in|nach) {_NUMBER} (sek|minuten|stund|tag)"
)
_UNIT_SECONDS = {
    "毫秒": 0.001,
    **dict.fromkeys(("秒", "초", "сек", "sek", "second", "segund"), 1.0),
    **dict.fromkeys(("分", "분", "мин", "minut", "minuten"), 60.0),
    **dict.fromkeys(("小时", "小時", "時間", "시간", "час", "stund", "heure", "hora"), 3600.0),
    **dict.fromkeys(("天", "日", "일", "дн", "ден", "tag", "jour", "dia", "día"), 86400.0),
}


def foreign_wait(words: str) -> float | None:
    """Return the wait in seconds that a message in another language names; None if it names no believable one."""
    found = _WAITS.search(words)
    if found is None:
        return None
    amount, unit = (group for group in found.groups() if group)
    wait = float(amount.replace(",", ".")) * _UNIT_SECONDS[unit]
    return wait if wait <= MAX_SECONDS else None
