# The router, without torch and without any model. From the root of the repository:
#   docker build --file deploy/router.Dockerfile --tag warmroute-router:0.1.0 .
FROM python:3.12-slim AS build
RUN python -m venv /opt/warmroute
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE warmroute.py ./
COPY kv_events kv_events
COPY policies policies
COPY protocol protocol
COPY replay replay
COPY router router
COPY worker worker
RUN /opt/warmroute/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home warmroute && install --directory --owner warmroute /cache
COPY --from=build /opt/warmroute /opt/warmroute
# Tokenizers are looked for where the workers keep their models: mount the same volume, or give --tokenizer.
ENV PATH=/opt/warmroute/bin:$PATH XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
VOLUME /cache
USER 10001
EXPOSE 8000
ENTRYPOINT ["warmroute", "router"]
CMD ["--host", "0.0.0.0", "--port", "8000"]
