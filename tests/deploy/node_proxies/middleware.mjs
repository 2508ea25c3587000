// http-proxy-middleware in front of a node: middleware.mjs PORT NODE_PORT [uncured]
import { createServer } from "node:http";
import { createProxyMiddleware } from "http-proxy-middleware";

const [port, node, uncured] = process.argv.slice(2);

const on = {
  error(error, request, response) {
    if (response.headersSent) response.destroy();
  },
};

createServer(
  createProxyMiddleware({ target: `http://127.0.0.1:${node}`, on: uncured ? {} : on }),
).listen(Number(port), "127.0.0.1");
