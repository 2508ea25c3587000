# Creates two buckets, and a user with the rights of the nodes. `sh -eu` runs this script in the store's
# image at each start. Buckets and their objects remain. The policy is set again from policy.json, and the
# user's secret from .env.

export MC_CONFIG_DIR=/tmp/mc
mc alias set store http://s3:9000 "$MINIO_ROOT_USER" "$MINIO_ROOT_PASSWORD"
mc mb --ignore-existing store/masters store/variants
mc admin policy create store audioproxy-node /policy.json
mc admin user add store "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
case $(mc admin user info store "$AWS_ACCESS_KEY_ID") in
    *audioproxy-node*) ;;
    *) mc admin policy attach store audioproxy-node --user "$AWS_ACCESS_KEY_ID" ;;
esac
