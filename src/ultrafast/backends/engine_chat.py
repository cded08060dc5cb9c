"""Our engine as a chat backend: the conversation rendered and tokenised, the call turned into the engine's request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ultrafast.backends.base import (
    Backend,
    BackendState,
    Call,
    ChatRequest,
    GenerationRequest,
    GenerationStream,
    ModelDescription,
)
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.errors import EngineUnavailableError
from ultrafast.weights.store import ModelLocation


class EngineChat:
    """One engine and its model's tokenizer and template."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        location: ModelLocation,
        template_file: Path | None = None,
        *,
        reserved_slots: int = 0,
    ) -> None:
        self.name = name
        self._backend = backend
        self._location = location
        self._template_file = template_file
        self.reserved_slots = reserved_slots  # of the engine's sequences, for the tier ``ultrafast``
        self._prompt: ChatPrompt | None = None

    @property
    def ready(self) -> bool:
        """Whether the engine is loaded and answers."""
        return self._prompt is not None and self._backend.ready

    @property
    def state(self) -> BackendState:
        """How the engine is, for its operator."""
        return BackendState("starting") if self._prompt is None else self._backend.state

    @property
    def model(self) -> ModelDescription:
        """The loaded model; ``EngineUnavailableError`` until it is."""
        return self._backend.model

    @property
    def model_name(self) -> str:
        """How the model is called, loaded or not."""
        return self._location.name

    @property
    def description(self) -> ModelDescription | None:
        """The loaded model; None until it is."""
        return self._backend.model if self._prompt is not None else None

    @property
    def unreserved_sequences(self) -> int | None:
        """How many sequences of any tier run at once; None until the model is loaded."""
        description = self.description
        return None if description is None else description.max_sequences - self.reserved_slots

    @property
    def prompt(self) -> ChatPrompt:
        """Tokenizer and template; ``EngineUnavailableError`` until they are read."""
        if self._prompt is None:
            raise EngineUnavailableError("the engine is starting")
        return self._prompt

    async def start(self) -> None:
        """Read the tokenizer, load the model. Raises the reader's or loader's ``UltrafastError``."""
        prompt = await asyncio.to_thread(ChatPrompt.from_file, self._location.path, self._template_file)
        await self._backend.start()
        self._prompt = prompt

    async def stop(self) -> None:
        """End the engine; calls in flight fail with ``EngineUnavailableError``. Safe twice."""
        await self._backend.stop()

    def prompt_tokens(self, chat: ChatRequest) -> list[int]:
        """The prompt in tokens: checked against the context now, not when its turn comes."""
        return self.prompt.tokens(chat.messages, context=self.model.context)

    def answer(self, call: Call) -> GenerationStream:
        """Submit ``call`` to the engine."""
        chat = call.chat
        tokens = call.prompt_tokens if call.prompt_tokens is not None else self.prompt_tokens(chat)
        request = GenerationRequest(
            request_id=call.request_id,
            prompt_tokens=tokens,
            sampling=chat.sampling,
            max_tokens=min(call.max_tokens, self.model.context - len(tokens)),
            choices=chat.choices,
            stop=chat.stop,
            logprobs=chat.logprobs,
            tier=call.tier,
            salt=call.project,
        )
        return self._backend.generate(request)
