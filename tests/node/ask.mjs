// Calls of the Node SDKs at once, at their defaults but for retries; prints how many were answered, and the errors.
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";

const [sdk, count] = [process.argv[2], Number(process.argv[3])];
const messages = [{ role: "user", content: "How high is the tide?" }];

async function* pieces(stream) {
  for await (const piece of stream) yield piece;
}

const asks = {
  openai: (client) => client.chat.completions.create({ model: "gpt-4o-mini", messages }),
  "openai-stream": async (client) => {
    let length = 0;
    const stream = await client.chat.completions.create({ model: "gpt-4o-mini", messages, stream: true });
    for await (const piece of pieces(stream)) length += piece.choices[0]?.delta?.content?.length ?? 0;
    if (!length) throw new Error("an empty stream");
  },
  anthropic: (client) => client.messages.create({ model: "claude-opus-4-5", max_tokens: 64, messages }),
  gemini: (client) => client.models.generateContent({ model: "gemini-2.5-flash", contents: "How high is the tide?" }),
};
const clients = {
  openai: () => new OpenAI({ apiKey: "sk-node", maxRetries: 0 }),
  "openai-stream": () => new OpenAI({ apiKey: "sk-node-stream", maxRetries: 0 }),
  anthropic: () => new Anthropic({ apiKey: "sk-node", maxRetries: 0 }),
  gemini: () => new GoogleGenAI({ apiKey: "node" }),
};

const client = clients[sdk]();
const began = performance.now();
const ended = await Promise.allSettled(Array.from({ length: count }, () => asks[sdk](client)));
const failed = ended.filter((each) => each.status === "rejected").map((each) => String(each.reason));
const seconds = (performance.now() - began) / 1000;
console.log(JSON.stringify({ answered: count - failed.length, errors: [...new Set(failed)], seconds }));
