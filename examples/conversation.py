"""A conversation of three turns: the client keeps the history and sends all of it each time.

OPENAI_BASE_URL and OPENAI_API_KEY come from the environment.
"""

from __future__ import annotations

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

QUESTIONS = (
    "Name one animal that lives in the sea.",
    "What does it eat?",
    "Write one sentence about both.",
)


def main() -> None:
    client = OpenAI()
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        completion = client.chat.completions.create(model=model, messages=messages, max_tokens=120, temperature=0.3)
        answer = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})
        print(f"> {question}\n{answer}\n")


if __name__ == "__main__":
    main()
