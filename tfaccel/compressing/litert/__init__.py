"""LiteRT files: conversion, quantization, and what is in them."""
