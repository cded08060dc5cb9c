"""One question at a service tier: the answer, the tier that served it, its tokens and times; or why it was refused.

The arguments are the tier and, if wanted, the question. OPENAI_BASE_URL and OPENAI_API_KEY come from the environment.
"""

from __future__ import annotations

import sys

from openai import APIStatusError, OpenAI


def main() -> None:
    tier, *words = sys.argv[1:] or ["auto"]
    client = OpenAI()
    try:
        completion = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": " ".join(words) or "Name three colours."}],
            max_tokens=40,
            temperature=0,
            extra_body={"service_tier": tier},  # the client's own parameter does not know "ultrafast" yet
        )
    except APIStatusError as error:
        sys.exit(f"{error.status_code} {error.code}: {error.body['message'] if isinstance(error.body, dict) else ''}")
    print(completion.choices[0].message.content)
    usage, seconds = completion.usage, (completion.model_extra or {}).get("time_info", {}).get("total_time", 0.0)
    if usage is not None:
        tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        print(f"[served at {completion.service_tier}: {tokens}, {seconds:.2f} s]")


if __name__ == "__main__":
    main()
