"""Provider tables, and the pure functions that read requests and responses by them. Nothing raises at a request.

- `recognise`, `adopt`, `named`: the provider that a request goes to.
- `generates`, `sdk_family`: the inference paths of any host, and the SDK that sends the request.
- `read_body`, `estimate`: the facts of a request, and its expected charge.
- `scope`, `family_of`, `credential_of`: the quota that a request counts against.
- `judge`, `judge_event`: the outcome of an answer.
- `concerns_key`: whether a rejection holds for its key, and not for one request.
- `usage_of`: the usage that an answer states.
- `has_content`: whether an answer in a stream has begun.
- `finish_reason_of`, `request_id_of`: facts of an answer for records of attempts.
- `price_of`, `register_price`, `load_prices`: prices of models, and `ModelPrice` with the cost of a usage.
- `dimensions`: readings by window, for display.

A custom table is a `Provider` made of `Endpoint`, `HeaderRow`, `ErrorRow` and `Charging`; it ends with `COMMON_ERRORS`.
`tidegate.register_provider` registers it.
"""

from __future__ import annotations

from tidegate.core.values import Cause, Kind
from tidegate.providers._lookup import TABLES, adopt, generates, named, recognise, table_of
from tidegate.providers._lookup import (
    Current as Current,
)
from tidegate.providers._lookup import (
    add as add,
)
from tidegate.providers._paths import Endpoint
from tidegate.providers._prices import (
    PRICES_DATE,
    PRICES_MAX_AGE_DAYS,
    ModelPrice,
    count_usage,
    load_prices,
    price_of,
    register_price,
)
from tidegate.providers._request import (
    charged,
    credential_of,
    estimate,
    family_of,
    payer,
    read_body,
    scope,
)
from tidegate.providers._response import concerns_key, judge, judge_event
from tidegate.providers._schema import COMMON_ERRORS, Charging, ErrorRow, HeaderRow, Provider
from tidegate.providers._schema import SharedQuotas as SharedQuotas
from tidegate.providers._sdks import ANY, BASE_URL_VARIABLES, GATEWAY_VARIABLES, UNNAMED, sdk_family
from tidegate.providers._usage import finish_reason_of, has_content, request_id_of, usage_of
from tidegate.providers._values import dimensions
from tidegate.providers.compatible import COMPATIBLE
from tidegate.providers.refusal_limits import return_date

__all__ = [
    "ANY",
    "BASE_URL_VARIABLES",
    "COMMON_ERRORS",
    "COMPATIBLE",
    "GATEWAY_VARIABLES",
    "PRICES_DATE",
    "PRICES_MAX_AGE_DAYS",
    "TABLES",
    "UNNAMED",
    "Cause",
    "Charging",
    "Endpoint",
    "ErrorRow",
    "HeaderRow",
    "Kind",
    "ModelPrice",
    "Provider",
    "adopt",
    "charged",
    "concerns_key",
    "count_usage",
    "credential_of",
    "dimensions",
    "estimate",
    "family_of",
    "finish_reason_of",
    "generates",
    "has_content",
    "judge",
    "judge_event",
    "load_prices",
    "named",
    "payer",
    "price_of",
    "read_body",
    "recognise",
    "register_price",
    "request_id_of",
    "return_date",
    "scope",
    "sdk_family",
    "table_of",
    "usage_of",
]
