// Fastify in front of a node: fastify.mjs PORT NODE_PORT CERTIFICATE KEY [uncured]
import { readFileSync } from "node:fs";
import fastify from "fastify";
import proxy from "@fastify/http-proxy";

const [port, node, certificate, key, uncured] = process.argv.slice(2);
const https = { cert: readFileSync(certificate), key: readFileSync(key), allowHTTP1: true };

const replyOptions = {
  onResponse(request, reply, { stream }) {
    stream.on("error", (error) => (reply.raw.stream ?? reply.raw).destroy(error));
    reply.send(stream);
  },
};

const app = fastify({ http2: true, https, routerOptions: { maxParamLength: 16384 } });
app.register(proxy, {
  upstream: `http://127.0.0.1:${node}`,
  // A node's 503 is final.
  retryMethods: [],
  replyOptions: uncured ? {} : replyOptions,
});
app.listen({ port: Number(port), host: "127.0.0.1" });
