"""The studio: a local web page that shows processes, generation, strokes, runs and results.

    browser ──POST /api/…──▶ guard (host, origin, token, sizes) ──▶ queue (fair, one thread a lane) ──▶ torch
            ◀── one JSON event a line, while the work goes on ──

A request is its own job: its answer streams, and closing it cancels the work. `app.create_app` puts it together,
`server.serve` runs it.
"""
