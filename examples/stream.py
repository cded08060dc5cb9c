"""One streamed answer through the official client, then what the server itself recorded about it.

OPENAI_BASE_URL and OPENAI_API_KEY come from the environment. The question is the argument, if there is one.
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Explain in three sentences why the sky is blue."
    client = OpenAI()
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        max_tokens=200,
        temperature=0.3,
        stream=True,
        stream_options={"include_usage": True},
    )
    seconds, seed = 0.0, None
    for chunk in stream:
        # Not part of OpenAI's API, but the client keeps fields it does not know: the server's own times, in seconds,
        # and the seed that it drew, by which the same question has the same answer again.
        more = chunk.model_extra or {}
        seconds = more.get("time_info", {}).get("completion_time", seconds)
        seed = more.get("seed", seed)
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
            speed = f", {(tokens - 1) / seconds:.1f} tokens/s" if seconds else ""
            drawn = "" if seed is None else f", seed {seed}"
            print(f"\n\n[{chunk.model}: {tokens} tokens{drawn}{speed}, by the server's own record]")


if __name__ == "__main__":
    main()
