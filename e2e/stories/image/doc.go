// Package image builds the image's files as the Dockerfile describes, without a container engine. Its tests prove that
// the agent works with these files and with the privileges that the chart grants. This package replaces the kubelet
// (mounts, token, environment), and e2e/testbed/contain replaces the container runtime.
package image
