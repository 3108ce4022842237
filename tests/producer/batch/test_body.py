"""From an OpenAI body to a job: honoured, without effect, or refused; never ignored."""

from __future__ import annotations

import pytest

from mlxq_producer.batch.body import Plan, job_fields, job_id
from mlxq_producer.batch.lines import BadLine, Request
from mlxq_producer.batch.sending import send
from mlxq_producer.submission import prepare
from mlxq_schemas import Job
from mlxq_schemas.errors import JobError

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def plan(tmp_path) -> Plan:
    return Plan("batch_1", 2e9, tmp_path)


def job(plan: Plan, url: str = CHAT, **body: object) -> Job:
    """The job of a body, as the queue takes it."""
    if url == CHAT:
        body = {"messages": HELLO, **body}
    request = Request(3, "mine", url, body, 100)
    return prepare(job_fields(request, plan), inline_media=True).job


def test_a_chat_body_becomes_a_job(plan):
    found = job(
        plan,
        model="m",
        max_completion_tokens=5,
        temperature=0.5,
        top_p=0.9,
        stop="end",
        seed=3,
        logit_bias={"17": -100},
        frequency_penalty=0.5,
        logprobs=True,
        top_logprobs=2,
        n=1,
        stream=False,
        tools=None,
        user="me",
    )
    assert found.messages is not None
    assert found.messages[0].content == "hello"
    assert (found.id, found.model, found.deadline) == (job_id("batch_1", "mine"), "m", 2e9)
    sampling = found.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.5, 0.9)
    assert (sampling.stop, sampling.seed, sampling.logit_bias) == (["end"], 3, {17: -100.0})
    assert sampling.frequency_penalty == 0.5
    assert (found.logprobs, found.stream) == (2, True)
    assert found.metadata == {"batch": "batch_1", "custom_id": "mine", "user": "me"}


def test_what_a_body_leaves_out_is_as_with_openai(plan):
    chat = job(plan)
    assert (chat.sampling.temperature, chat.sampling.max_tokens, chat.stream) == (1.0, 4096, False)
    completion = job(plan, "/v1/completions", prompt=["Once"], logprobs=1)
    assert (completion.prompt, completion.sampling.max_tokens, completion.logprobs) == (
        "Once",
        16,
        1,
    )


def test_the_model_of_the_lines_may_be_replaced(plan):
    assert job(Plan("batch_1", 2e9, plan.media_root, model="n"), model="m").model == "n"
    assert job(Plan("batch_1", 2e9, plan.media_root, model="any"), model="m").model is None
    assert job(plan, model="m").model == "m"
    assert job(plan, model="any").model is None


def test_images_by_url_data_and_path_under_the_root(plan, tmp_path):
    (tmp_path / "a.png").write_bytes(b"bytes")
    urls = ["https://x/y.png", "data:image/png;base64,AA==", "a.png", (tmp_path / "a.png").as_uri()]
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    content = [*parts, {"type": "text", "text": "what?"}]
    found = [
        ref.url for _, ref in job(plan, messages=[{"role": "user", "content": content}]).media()
    ]
    assert found[:2] == urls[:2]
    assert found[2] == found[3]
    assert found[2].startswith("blob:")


def image(**fields: object) -> list[object]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": fields}]}]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"n": 2}, "unsupported", "n is not 1"),
        ({"n": True}, "unsupported", "n is not 1"),
        ({"stream": True}, "unsupported", "stream"),
        ({"stream": 0}, "unsupported", "stream"),
        ({"stream_options": {"include_usage": True}}, "unsupported", "stream_options"),
        ({"store": "yes"}, "unsupported", "store"),
        ({"temperature": 2.1}, "invalid_job", "temperature is 2.1: give 0 to 2"),
        ({"top_p": 1.5}, "invalid_job", "top_p is 1.5: give 0 to 1"),
        ({"presence_penalty": -3}, "invalid_job", "give -2 to 2"),
        ({"frequency_penalty": 2.5}, "invalid_job", "give -2 to 2"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_job", "give 0 to 20"),
        ({"best_of": 2}, "unsupported", "best_of"),
        ({"echo": True}, "unsupported", "echo"),
        ({"suffix": "end"}, "unsupported", "suffix"),
        ({"service_tier": "other"}, "unsupported", "service_tier"),
        ({"modalities": ["text", "audio"]}, "unsupported", "modalities"),
        ({"audio": {"voice": "a"}}, "unsupported", "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "unsupported", "prediction"),
        ({"tool_choice": "required"}, "unsupported", "tool_choice"),
        ({"functions": [{"name": "f"}]}, "unsupported", "functions"),
        ({"verbosity": "low"}, "unsupported", "verbosity"),
        ({"web_search_options": {}}, "unsupported", "web_search_options"),
        ({"response_format": {"type": "json_object"}}, "unsupported", "response_format"),
        ({"reasoning_effort": "low"}, "unsupported", "reasoning_effort"),
        ({"tools": [{"type": "function"}]}, "unsupported", "tools"),
        ({"messages": []}, "invalid_job", "messages"),
        ({"messages": "hello"}, "invalid_job", "messages"),
        ({"messages": ["hello"]}, "invalid_job", "message"),
        ({"messages": [{"role": "user", "content": " "}]}, "empty_prompt", "empty"),
        ({"messages": [{"role": "user", "content": "x", "name": "b"}]}, "unsupported", "name"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "invalid_job", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "tale"}]}]}, "invalid_job", "tale"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]},
            "unsupported",
            "messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "tool", "content": "5", "tool_call_id": "c"}]},
            "unsupported",
            "messages[0].tool_call_id",
        ),
        ({"messages": [{"role": "user"}]}, "empty_prompt", "empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": "x"}]}]},
            "unsupported",
            "messages[0].content[0].video_url",
        ),
        (
            {"messages": image(url="https://x", detail="low")},
            "unsupported",
            "messages[0].content[0].image_url.detail",
        ),
        (
            {"messages": image(url="https://x", fps=1)},
            "unsupported",
            "messages[0].content[0].image_url.fps",
        ),
        ({"max_tokens": "5"}, "invalid_job", "max_tokens"),
        ({"max_tokens": True}, "invalid_job", "max_tokens"),
        ({"seed": "7"}, "invalid_job", "seed"),
        ({"metadata": {"score": float("nan")}}, "invalid_job", "metadata.metadata.score"),
        ({"user": "half \ud83d"}, "invalid_job", "metadata.user"),
        ({"messages": image(url=5)}, "invalid_job", "url"),
        ({"messages": image(url="/etc/passwd")}, "media_forbidden", "--media-root"),
        ({"messages": image(url="../x.png")}, "media_forbidden", "--media-root"),
        ({"messages": image(url="file:///etc/passwd")}, "media_forbidden", "--media-root"),
        ({"max_tokens": -1}, "invalid_job", "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_job", "differ"),
        ({"temperature": "hot"}, "invalid_job", "temperature"),
        ({"top_logprobs": 2}, "invalid_job", "logprobs: true"),
        ({"logprobs": 3}, "invalid_job", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_job", "logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(plan, body, code, words):
    with pytest.raises(JobError) as caught:
        job(plan, **body)
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        {"stop": "END", "logit_bias": {"5": 1}, "top_p": 1, "temperature": 0},
        {"n": 1, "stream": False, "store": False, "best_of": 1, "echo": False, "suffix": ""},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "functions": []},
        {"store": True, "service_tier": "flex", "parallel_tool_calls": True},
        {"modalities": ["text"], "service_tier": "auto", "response_format": {"type": "text"}},
        {"stream_options": None, "prediction": None, "audio": None, "seed": None},
        {"messages": [{"role": "user", "content": "x", "name": None, "refusal": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]},
    ],
)
def test_what_asks_for_what_happens_anyway_passes(plan, body):
    assert job(plan, **body)


def test_notes_about_a_request_are_kept_with_its_job(plan):
    notes = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": 1}}
    assert job(plan, **notes).metadata.items() >= notes.items()


def test_a_completion_has_one_prompt(plan):
    for prompt in (None, [], ["a", "b"], [[1, 2]]):
        with pytest.raises(JobError, match="prompt"):
            job(plan, "/v1/completions", prompt=prompt)


def test_a_link_does_not_lead_out_of_the_root(plan, tmp_path):
    (tmp_path / "link.png").symlink_to("/etc/passwd")
    with pytest.raises(JobError, match="--media-root"):
        job(plan, messages=image(url="link.png"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"temprature": 1}, "temprature is unknown: did you mean temperature?"),
        ({"max_completion_token": 1}, "did you mean max_completion_tokens?"),
        ({"Stop": "x"}, "Stop is unknown: did you mean stop?"),
        (
            {"messages": [{"role": "user", "contents": "x"}]},
            "messages[0].contents is unknown: did you mean messages[0].content?",
        ),
        ({"colour": 1}, "not supported by this version: colour; leave these out"),
    ],
)
def test_a_misspelt_field_is_met_with_its_name(plan, body, said):
    with pytest.raises(JobError) as caught:
        job(plan, **body)
    assert caught.value.code == "unsupported"
    assert said in caught.value.message


def test_the_words_of_a_line_are_those_of_its_body(plan, producer):
    """Not of the job that is made from it: nobody has seen its id, nor where sampling stands."""
    lines = [Request(7, "a", CHAT, {"messages": HELLO, "seed": "x"}, 9)]
    [bad] = send(producer, plan, lines)
    assert isinstance(bad, BadLine)
    assert bad.message == 'line 7: seed "x": must be a whole number'
