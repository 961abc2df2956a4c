"""What forges and pre-commit read names things that exist: scripts, hooks, versions, pages."""

import os
import re

import pytest
import yaml
from source_tree import ROOT, setup_cfg

WORKFLOW, PIPELINE, HOOKS = ".github/workflows/test.yml", ".gitlab-ci.yml", ".pre-commit-config.yaml"
ABOUT = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CHANGELOG.md", "README.md")
MADE_BY_SCRIPTS_TEST = ".venv/bin/"


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def setup():
    return setup_cfg()


def pythons(setup):
    """The versions of Python for which setup.cfg says that tfaccel is made."""
    return re.findall(r"Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)


def lines_run(name):
    """Each shell line of a workflow or pipeline."""
    jobs = read(name)
    jobs = jobs["jobs"] if name == WORKFLOW else jobs
    steps = [one for job in jobs.values() for one in job.get("steps", job.get("script", []))]
    texts = [step.get("run", "") if isinstance(step, dict) else step for step in steps]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", [WORKFLOW, PIPELINE])
def test_what_is_run_is_there(name):
    programs = [line.split()[0] for line in lines_run(name)]
    assert "./scripts/test --full" in lines_run(name)
    assert [one for one in programs if not (ROOT / one).is_file() or not os.access(ROOT / one, os.X_OK)] == []


def test_every_python_is_tested(setup):
    workflow, pipeline = read(WORKFLOW)["jobs"], read(PIPELINE)
    assert workflow["full"]["strategy"]["matrix"]["python"] == pythons(setup)
    assert pipeline["full"]["parallel"]["matrix"] == [{"VERSION": pythons(setup)}]


def test_only_the_next_keras_may_fail():
    workflow, pipeline = read(WORKFLOW)["jobs"], read(PIPELINE)
    assert {name for name, job in workflow.items() if job.get("continue-on-error")} == {"keras-nightly"}
    assert {name for name, job in pipeline.items() if job.get("allow_failure")} == {"keras-nightly"}


def test_hooks_are_the_projects_own_tools(setup):
    hooks = [(one["repo"], hook) for one in read(HOOKS)["repos"] for hook in one["hooks"]]
    assert {repo for repo, _ in hooks} == {"local"}, "hooks of another host are downloaded"
    tools = [hook["entry"].split()[0] for _, hook in hooks]
    assert all(tool.startswith(MADE_BY_SCRIPTS_TEST) for tool in tools)
    assert {tool.removeprefix(MADE_BY_SCRIPTS_TEST) for tool in tools} == {"ruff", "mypy"}
    assert {"ruff", "mypy"} <= set(setup["options.extras_require"]["dev"].split())


def test_citation_says_what_setup_cfg_says(setup):
    citation, about = read("CITATION.cff"), setup["metadata"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert str(citation["version"]) == about["version"]
    assert citation["license"] == about["license"]
    assert citation["authors"] == [{"name": about["author"]}]
    assert citation["title"] == f"tfaccel: {about['description'][0].lower()}{about['description'][1:]}"


@pytest.mark.parametrize("page", ABOUT)
def test_links_of_pages_about_the_project_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert page == "CHANGELOG.md" or links
