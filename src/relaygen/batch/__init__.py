"""Big offline jobs in OpenAI's batch format: a file of requests in, a file of answers out, in bounded memory.

lines.py     one request a line, one answer a line: the format
index.py     which custom_ids there are, and which have been answered: on disk
outbox.py    the file of answers: resumed, appended to
job.py       the workers between the two files
answer.py    one request to its answer, by the gateway's own code
cluster.py   the same on the processes of a Ray cluster
"""
