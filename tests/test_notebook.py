"""A notebook in a real Jupyter kernel: progress, tables and figures below cells, and an interrupt that interrupts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="Jupyter is not installed: pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="Jupyter is not installed: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="Jupyter is not installed: pip install nbclient ipykernel")

ONE = "['sweep=null', 'figures=null', 'backend=numpy', {}]"
CELLS = (
    f"import fredsim\nfredsim.run('quickstart', {ONE.format(repr('iterations=20'))}, out='one', progress=True)",
    "results = fredsim.sweep('quickstart', ['iterations=20', 'backend=numpy'], out='three')\nresults",
    "results.plot('curves', by='server.name')",
    f"fredsim.run('quickstart', {ONE.format(repr('iterations=400000000'))}, out='long')",
    "fredsim.load('long').summary['status']",
)
LONG = 3  # the number of the cell that is interrupted


async def _execute(client: Any) -> None:
    async with client.async_setup_kernel():
        for number, cell in enumerate(client.nb.cells):
            running = asyncio.create_task(client.async_execute_cell(cell, number))
            while number == LONG and not Path("long/metrics.csv").exists():  # it has begun
                await asyncio.sleep(0.05)
            if number == LONG:
                await client.km.interrupt_kernel()
            await running


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_a_notebook(small_yaml: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    here = {"metadata": {"path": str(small_yaml.parent)}}
    how: dict[str, Any] = {"timeout": 300, "kernel_name": "python3", "allow_errors": True, "resources": here}
    asyncio.run(_execute(nbclient.NotebookClient(notebook, **how)))
    one, three, figure, long, last = (cell.outputs for cell in notebook.cells)
    told = [output.data["text/plain"] for output in one if output.output_type == "display_data"]
    assert any("finished after 20 iterations" in text.replace("\x1b[0m", "") for text in told)
    assert [("<table" in outputs[-1].data["text/html"]) for outputs in (one, three)] == [True, True]
    assert [[*output.data] for output in figure] == [["text/plain", "image/png"]]
    assert [output.ename for output in long if output.output_type == "error"] == ["KeyboardInterrupt"]
    assert last[0].data["text/plain"] == "'interrupted'"
