# A worker. From the root of the repository, for CPUs:
#   docker build --file deploy/worker.Dockerfile --tag warmroute-worker:0.1.0 .
# and for NVIDIA GPUs, with the wheels of the CUDA version that your driver knows:
#   docker build --file deploy/worker.Dockerfile --tag warmroute-worker:0.1.0-cuda \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/warmroute
WORKDIR /src
COPY constraints.txt ./
RUN /opt/warmroute/bin/pip install --no-cache-dir --constraint constraints.txt --index-url ${TORCH_INDEX} torch
COPY pyproject.toml README.md LICENSE warmroute.py ./
COPY kv_events kv_events
COPY policies policies
COPY protocol protocol
COPY replay replay
COPY router router
COPY worker worker
RUN /opt/warmroute/bin/pip install --no-cache-dir --constraint constraints.txt '.[worker]'

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home warmroute && install --directory --owner warmroute /cache
COPY --from=build /opt/warmroute /opt/warmroute
# The alias smollm2-135m is built in here on first use: keep it on a volume.
ENV PATH=/opt/warmroute/bin:$PATH XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
VOLUME /cache
USER 10001
# HTTP, KV events, replay of KV events
EXPOSE 8101 5557 5558
ENTRYPOINT ["warmroute", "worker"]
CMD ["--model", "smollm2-135m", "--host", "0.0.0.0", "--port", "8101", \
     "--kv-events", "tcp://*:5557", "--kv-replay", "tcp://*:5558"]
