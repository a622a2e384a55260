# The gateway alone; the models run elsewhere.
#   docker build -t relaygen .
#   docker run -p 8000:8000 -e RELAYGEN_API_KEYS=... relaygen serve --large http://gpu:8001 --small http://gpu:8002
FROM python:3.13-slim AS build
WORKDIR /source
RUN python -m venv /opt/relaygen
COPY requirements.lock ./
RUN /opt/relaygen/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/relaygen/bin/pip install --no-cache-dir --no-deps "." && /opt/relaygen/bin/pip check

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home relaygen
COPY --from=build /opt/relaygen /opt/relaygen
ENV PATH=/opt/relaygen/bin:$PATH RELAYGEN_HOST=0.0.0.0 RELAYGEN_PORT=8000
USER 10001
WORKDIR /home/relaygen
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["relaygen"]
CMD ["serve"]
