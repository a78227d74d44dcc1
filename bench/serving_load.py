#!/usr/bin/env python3
"""How an OpenAI-style server holds up under load: tokens per second and waiting times by number of clients.

    bench/serving_load.py --url http://127.0.0.1:8000 --clients 1,8,32 --tokens 64 [--json FILE]

Each client sends a chat request, reads the answer as it streams in, and sends the next one, until
--requests have been sent by all together. Answers do not end before --tokens. Needs a server
(docs/serving.md) and nothing else.
"""

from __future__ import annotations

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import threading
import time
import urllib.parse

QUESTIONS = (
    "Why is the sky blue?",
    "Name three fruits.",
    "What does a lighthouse keeper do all day?",
    "Write a letter to a friend who has moved to another town.",
    "How does bread rise?",
    "Tell me about a river.",
)


def connect(url: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=600)


def served_model(url: str) -> str:
    connection = connect(url)
    connection.request("GET", "/v1/models")
    return json.load(connection.getresponse())["data"][0]["id"]


def ask(url: str, model: str, question: str, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first piece of the answer and to its end, and tokens of it."""
    body = {
        "model": model, "messages": [{"role": "user", "content": question}], "max_tokens": tokens,
        "min_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection = connect(url)
    begin = time.perf_counter()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"serving_load: {url} answered {answer.status}: {answer.read(300).decode()}")
    first, counted = 0.0, 0
    for line in answer:
        text = line.decode().removeprefix("data: ").strip()
        if not text or text == "[DONE]":
            continue
        piece = json.loads(text)
        if piece["choices"] and not first:
            first = time.perf_counter() - begin
        if piece.get("usage"):
            counted = piece["usage"]["completion_tokens"]
    return first, time.perf_counter() - begin, counted


def load(url: str, model: str, clients: int, requests: int, tokens: int) -> dict[str, float]:
    lock, left = threading.Lock(), list(range(requests))
    seen: list[tuple[float, float, int]] = []

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            one = ask(url, model, QUESTIONS[number % len(QUESTIONS)], tokens)
            with lock:
                seen.append(one)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if len(seen) != requests:
        sys.exit(f"serving_load: {requests - len(seen)} of {requests} requests failed")
    firsts, ends = (sorted(one[i] for one in seen) for i in (0, 1))
    late = int(0.95 * (len(seen) - 1))
    return {
        "clients": clients,
        "requests": requests,
        "tokens_per_s": sum(one[2] for one in seen) / seconds,
        "first_s": statistics.median(firsts),
        "first_p95_s": firsts[late],
        "answer_s": statistics.median(ends),
        "answer_p95_s": ends[late],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", default="1,8,32", help="numbers of them, one after the other")
    parser.add_argument("--requests", type=int, default=64, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    try:
        model = served_model(given.url)
    except OSError as error:
        sys.exit(f"serving_load: nobody answers at {given.url} ({error}): start a server")
    ask(given.url, model, QUESTIONS[0], 4)  # what is compiled at the first request
    print(f"{model}: {given.requests} answers of {given.tokens} tokens")
    print("clients   tokens/s   first token: median, 95 %   whole answer: median, 95 %")
    found = []
    for clients in map(int, given.clients.split(",")):
        one = load(given.url, model, clients, given.requests, given.tokens)
        found.append(one)
        print(
            f"{clients:7}   {one['tokens_per_s']:8.1f}   {one['first_s']:11.2f} s {one['first_p95_s']:9.2f} s"
            f"   {one['answer_s']:12.2f} s {one['answer_p95_s']:9.2f} s",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps({"model": model, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
