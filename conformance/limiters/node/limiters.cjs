// One rate limiter of Node in front of the stub: node limiters.cjs NAME PORT UPSTREAM.
// Each finished call is a line of standard output: its method and status.
const http = require("node:http");

const [, , name, port, upstream] = process.argv;
const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
const key = (request) => request.headers.authorization || "";
const log = (request, status) => process.stdout.write(`${request.method} ${status}\n`);

// Hands a call to the stub and its answer back.
function forward(request, response) {
  const options = { host: "127.0.0.1", port: upstream, path: request.url, method: request.method, agent };
  options.headers = { "content-type": "application/json", "content-length": request.headers["content-length"] };
  const asked = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, { "content-type": "application/json" });
    answer.pipe(response);
  });
  asked.on("error", () => response.writeHead(502).end());
  request.pipe(asked);
}

function express(middleware) {
  const app = require("express")();
  app.use((request, response, next) => {
    response.on("finish", () => log(request, response.statusCode));
    next();
  });
  app.use(middleware);
  app.post("/v1/chat/completions", forward);
  app.listen(port, "127.0.0.1", 1024);
}

// 100 calls in windows of 10 s.
function rateLimit(standardHeaders) {
  const { rateLimit } = require("express-rate-limit");
  express(rateLimit({ windowMs: 10000, limit: 100, standardHeaders, legacyHeaders: false, keyGenerator: key }));
}

// The middleware of the package's manual; `hint` names the seconds of a refusal as the manual's login example does.
function flexible(limiter, hint) {
  express((request, response, next) => {
    limiter.consume(key(request)).then(
      () => next(),
      (refused) => {
        if (hint) response.set("Retry-After", String(Math.round(refused.msBeforeNext / 1000) || 1));
        response.status(429).send("Too Many Requests");
      },
    );
  });
}

const kinds = {
  "express-draft-6": () => rateLimit("draft-6"),
  "express-draft-7": () => rateLimit("draft-7"),
  "express-draft-8": () => rateLimit("draft-8"),
  "express-silent": () => rateLimit(false),
  "express-slow-down": () => {
    const { slowDown } = require("express-slow-down");
    express(slowDown({ windowMs: 10000, delayAfter: 50, delayMs: (hits) => hits * 20, keyGenerator: key }));
  },
  "flexible-window": () => {
    const { RateLimiterMemory } = require("rate-limiter-flexible");
    flexible(new RateLimiterMemory({ points: 50, duration: 5 }), true);
  },
  "flexible-block": () => {
    const { RateLimiterMemory } = require("rate-limiter-flexible");
    flexible(new RateLimiterMemory({ points: 50, duration: 5, blockDuration: 10 }), false);
  },
  "flexible-bursty": () => {
    const { RateLimiterMemory, BurstyRateLimiter } = require("rate-limiter-flexible");
    const burst = new RateLimiterMemory({ keyPrefix: "burst", points: 50, duration: 20 });
    flexible(new BurstyRateLimiter(new RateLimiterMemory({ points: 10, duration: 1 }), burst), false);
  },
  "fastify": async () => {
    const app = require("fastify")();
    await app.register(require("@fastify/rate-limit"), { max: 100, timeWindow: 10000, keyGenerator: key });
    app.addHook("onResponse", async (request, reply) => log(request.raw, reply.statusCode));
    app.post("/v1/chat/completions", async (request, reply) => {
      const url = `http://127.0.0.1:${upstream}${request.url}`;
      const answer = await fetch(url, { method: "POST", body: JSON.stringify(request.body) });
      return reply.code(answer.status).type("application/json").send(await answer.text());
    });
    await app.listen({ port: Number(port), host: "127.0.0.1", backlog: 1024 });
  },
};

if (!kinds[name]) {
  console.error(`limiter ${name} unknown: no such kind; nothing is started`);
  process.exit(2);
}
kinds[name]();
